#include "distributed/mpi/hook_import.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#if __ELF_NATIVE_CLASS == 64
#define RELOCATION_SYMBOL(info) ELF64_R_SYM(info)
#else
#define RELOCATION_SYMBOL(info) ELF32_R_SYM(info)
#endif

/* The tables of a loaded library's dynamic section that list its relocations: words and the symbols whose addresses
 * they hold. The dynamic linker has made the section's offsets absolute. */
typedef struct imports {
  ElfW(Addr) base;
  const ElfW(Sym) * symbols;
  const char *names;
  const ElfW(Rela) * table[2]; /* relocations of calls (DT_JMPREL); all others (DT_RELA) */
  size_t bytes[2];
} imports;

static imports imports_of(const struct link_map *map) {
  imports im = {.base = map->l_addr};
  for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
    const void *at = (const void *)d->d_un.d_ptr;
    switch (d->d_tag) {
      case DT_SYMTAB: im.symbols = at; break;
      case DT_STRTAB: im.names = at; break;
      case DT_JMPREL: im.table[0] = at; break;
      case DT_PLTRELSZ: im.bytes[0] = d->d_un.d_val; break;
      case DT_RELA: im.table[1] = at; break;
      case DT_RELASZ: im.bytes[1] = d->d_un.d_val; break;
    }
  }
  return im;
}

/* Returns true if the word is in the segment (RELRO) that is read-only after loading, unless binding is lazy. */
static bool is_read_only(const void *header, ElfW(Addr) base, ElfW(Addr) word) {
  const ElfW(Ehdr) *e = header;
  const ElfW(Phdr) *p = (const void *)((const char *)header + e->e_phoff);
  for (int i = 0; i < e->e_phnum; i++)
    if (p[i].p_type == PT_GNU_RELRO && word - base - p[i].p_vaddr < p[i].p_memsz) return true;
  return false;
}

static bool write_word(const void *header, ElfW(Addr) base, ElfW(Addr) word, void *value) {
  uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), start = word & ~(page - 1);
  bool locked = is_read_only(header, base, word);
  if (locked && mprotect((void *)start, page, PROT_READ | PROT_WRITE) != 0) return false;
  atomic_store((_Atomic(void *) *)word, value);
  if (locked) mprotect((void *)start, page, PROT_READ);
  return true;
}

lm_status lm_hook_import(const void *inside, const char *symbol, void *replacement) {
  Dl_info where;
  struct link_map *map = NULL;
  int words = 0;
  if (!dladdr1(inside, &where, (void **)&map, RTLD_DL_LINKMAP) || !map)
    return lm_fail(LM_E_STATE, "cannot replace %s: the dynamic linker knows no library that calls it", symbol);
  imports im = imports_of(map);
  for (int t = 0; t < 2 && im.symbols && im.names; t++)
    for (size_t i = 0; i < im.bytes[t] / sizeof(ElfW(Rela)); i++) {
      const ElfW(Rela) *r = &im.table[t][i];
      size_t index = RELOCATION_SYMBOL(r->r_info);
      if (index == 0 || strcmp(im.names + im.symbols[index].st_name, symbol) != 0) continue;
      if (!write_word(where.dli_fbase, im.base, im.base + r->r_offset, replacement))
        return lm_fail(LM_E_STATE, "cannot replace %s: the function table of '%s' is read-only", symbol,
                       where.dli_fname);
      words++;
    }
  return words > 0 ? LM_OK : lm_fail(LM_E_STATE, "cannot replace %s: '%s' does not call it", symbol, where.dli_fname);
}
