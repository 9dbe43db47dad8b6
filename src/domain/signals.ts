/** Names and numbers of signals on Linux x86_64, which host and guest have in common. */
const NAMES: readonly (readonly [string, number])[] = [
  ...([
    ["HUP", 1],
    ["INT", 2],
    ["QUIT", 3],
    ["ILL", 4],
    ["TRAP", 5],
    ["ABRT", 6],
    ["BUS", 7],
    ["FPE", 8],
  ] as const),
  ...([
    ["KILL", 9],
    ["USR1", 10],
    ["SEGV", 11],
    ["USR2", 12],
    ["PIPE", 13],
    ["ALRM", 14],
    ["TERM", 15],
  ] as const),
  ...([
    ["STKFLT", 16],
    ["CHLD", 17],
    ["CONT", 18],
    ["STOP", 19],
    ["TSTP", 20],
    ["TTIN", 21],
    ["TTOU", 22],
  ] as const),
  ...([
    ["URG", 23],
    ["XCPU", 24],
    ["XFSZ", 25],
    ["VTALRM", 26],
    ["PROF", 27],
    ["WINCH", 28],
    ["IO", 29],
  ] as const),
  ...([
    ["PWR", 30],
    ["SYS", 31],
    ["IOT", 6],
    ["POLL", 29],
    ["CLD", 17],
  ] as const),
];
/** Ends a process whatever it does. */
export const SIGKILL_SIGNAL = 9;
const NUMBERS: ReadonlyMap<string, number> = new Map(NAMES);
/** Highest number of a signal, which is a real-time signal. */
const SIGNAL_MAX = 64;

/** The number of a signal that is given as `TERM`, `SIGTERM` or `15`; null when there is no such signal. */
export function signalNumber(text: string): number | null {
  if (/^[1-9]\d?$/.test(text)) return Number(text) <= SIGNAL_MAX ? Number(text) : null;
  return NUMBERS.get(text.toUpperCase().replace(/^SIG/, "")) ?? null;
}
