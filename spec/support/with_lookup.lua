local core = require "luminary.core"
local temp = require "spec.support.temp"

--- Builds a library FOLDER/NAME.so of these lines of C, which come first where one looks up a host's name; returns
--- its LD_PRELOAD.
return function(folder, name, lines)
  local source = temp.write(("%s/%s.c"):format(folder, name), ([[
    #define _GNU_SOURCE
    #include <dlfcn.h>
    #include <netdb.h>
    #include <unistd.h>
    int getaddrinfo(const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **out) {
      int (*next)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
          dlsym(RTLD_NEXT, "getaddrinfo");
      if (host && !(hints->ai_flags & AI_NUMERICHOST)) %s
      return next(host, port, hints, out);
    }
  ]]):format(lines))
  local library = ("%s/%s.so"):format(folder, name)
  local ok, text = temp.run(folder, ("env -u LD_PRELOAD cc -shared -fPIC -o %s %s"):format(library, source))
  assert(ok, text)
  return (core.getenv "LD_PRELOAD" or "") .. " " .. library
end
