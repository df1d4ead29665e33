/*
 * Hides AVX-512, AMX and VNNI from the programs of a bench, so that libraries without a switch of their own, such as
 * onnxruntime, run the code that they have for AVX2. Compile as a shared object and name it in LD_PRELOAD.
 *
 * Linux makes CPUID a fault for this process (arch_prctl(2), ARCH_SET_CPUID; the CPU's flag is cpuid_fault), and the
 * signal handler answers with the CPU's own result without these features.
 */
#define _GNU_SOURCE
#include <cpuid.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { SET_CPUID = 0x1012, FEATURES = 7 };

#define BIT(n) (1u << (n))

/* Features of leaf 7, by the numbers of their bits: Intel's manual, volume 2, CPUID. */
static const unsigned AVX512_EBX = BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31);
static const unsigned AVX512_ECX = BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14);
static const unsigned AVX512_AMX_EDX = BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25);
static const unsigned VNNI_BF16_AMX_EAX = BIT(4) | BIT(5) | BIT(21) | BIT(23); /* subleaf 1 */
static const unsigned VNNI_EDX = BIT(4) | BIT(5) | BIT(10);

static struct sigaction earlier;

/* Lets CPUID run (1) or fault (0) on this thread and those that it starts. Returns 0, or -1 where that cannot be. */
static long set_cpuid(unsigned long runs) { return syscall(SYS_arch_prctl, SET_CPUID, runs); }

/* Emulates the CPUID instruction that faulted; passes other faults on. */
static void answer(int signal, siginfo_t *info, void *context) {
  greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
  const unsigned char *code = (const unsigned char *)r[REG_RIP];
  if (info->si_code <= 0 || code[0] != 0x0f || code[1] != 0xa2) {
    sigaction(signal, &earlier, NULL); /* the instruction faults again, for the earlier handler */
    return;
  }
  unsigned leaf = (unsigned)r[REG_RAX], subleaf = (unsigned)r[REG_RCX], a, b, c, d;
  set_cpuid(1);
  __cpuid_count(leaf, subleaf, a, b, c, d);
  set_cpuid(0);
  if (leaf == FEATURES && subleaf == 0) {
    b &= ~AVX512_EBX;
    c &= ~AVX512_ECX;
    d &= ~AVX512_AMX_EDX;
  }
  if (leaf == FEATURES && subleaf == 1) {
    a &= ~VNNI_BF16_AMX_EAX;
    d &= ~VNNI_EDX;
  }
  r[REG_RAX] = a;
  r[REG_RBX] = b;
  r[REG_RCX] = c;
  r[REG_RDX] = d;
  r[REG_RIP] += 2;
}

__attribute__((constructor)) static void hide(void) {
  struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO};
  sigaction(SIGSEGV, &action, &earlier);
  if (set_cpuid(0) != 0) {
    fputs("hide_avx512: this CPU or kernel cannot make CPUID fault (no cpuid_fault in /proc/cpuinfo)\n", stderr);
    _exit(1);
  }
}
