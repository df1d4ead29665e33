/* Reads and changes lm.backends' settings; reports library versions, and how often libraries searched for plans. */
#include "backend/known/plan_searches.h"
#include "backend/known/setting.h"
#include "bind/bind.h"
#include "op/kernels.h"

/* Sets a boolean of backend/known/setting.h, unless value is nil; returns its value before. */
LM_FUNCTION(setting, (text, name), (any, value)) {
  lm_setting setting = LM_SETTING_COUNT;
  lm_need(L, lm_setting_find(name, &setting));
  lua_pushboolean(L, lm_setting_get(setting));
  if (!lua_isnoneornil(L, 2)) lm_setting_set(setting, lm_need_boolean(L, 2, name, "the value"));
  return 1;
}

/* Returns the version number of "cuda", "cudnn" or "cublaslt", or nil without it; loads the backend,
 * since libraries have versions even without a device. */
LM_FUNCTION(cuda_version, (text, library)) {
  int64_t version = 0;
  if (lm_device_load("cuda") == LM_OK) {
    const lm_backend *backend = lm_backend_of(LM_DEVICE(LM_CUDA, 0));
    if (backend && backend->version) version = backend->version(library);
  }
  if (version > 0) {
    lua_pushnumber(L, (double)version);
  } else {
    lua_pushnil(L);
  }
  return 1;
}

LM_FUNCTION(plan_searches) { return lm_return_number(L, (double)lm_plan_searches()); }
