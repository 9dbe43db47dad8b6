import { dlopen, FFIType, ptr } from "bun:ffi";
import { checked, LibcError } from "./libc.ts";

/** Of struct termios of glibc on x86_64 in `bytes`, and more. */
const TERMIOS_BYTES = 64;
/** TCSADRAIN: the change waits until what was written before has gone out. */
const DRAIN_MODE = 1;
const TIOCGWINSZ = 0x5413n;

/** Loaded when they are needed: most commands need no terminal. */
function terminalCalls() {
  return dlopen("libc.so.6", {
    tcgetattr: { args: [FFIType.i32, FFIType.ptr], returns: FFIType.i32 },
    tcsetattr: { args: [FFIType.i32, FFIType.i32, FFIType.ptr], returns: FFIType.i32 },
    cfmakeraw: { args: [FFIType.ptr], returns: FFIType.void },
    ioctl: { args: [FFIType.i32, FFIType.u64, FFIType.ptr], returns: FFIType.i32 },
  }).symbols;
}

/** Modes of a terminal, between which it can be switched. */
export interface TerminalModes {
  /**
   * Every key as it is pressed, no echo, no signals, and output as it is written. The raw mode of the runtime is none for a
   * remote terminal: it goes on turning newlines in the output into carriage returns and newlines.
   */
  raw(): void;
  /** What it was at first. Does nothing when the terminal is gone. */
  restore(): void;
}

/** The modes of the terminal that a descriptor is. @throws LibcError when it is none */
export function terminalModes(fd: number): TerminalModes {
  const libc = terminalCalls();
  const saved = Buffer.alloc(TERMIOS_BYTES);
  checked("tcgetattr", libc.tcgetattr(fd, ptr(saved)));
  const raw = Buffer.from(saved);
  libc.cfmakeraw(ptr(raw));
  return {
    raw: () => void checked("tcsetattr", libc.tcsetattr(fd, DRAIN_MODE, ptr(raw))),
    restore() {
      try {
        checked("tcsetattr", libc.tcsetattr(fd, DRAIN_MODE, ptr(saved)));
      } catch (error) {
        // EIO: the terminal was closed.
        if (!(error instanceof LibcError)) throw error;
      }
    },
  };
}

/** Characters of a terminal; null when the descriptor is none, or nobody has told its size. */
export function windowSize(fd: number): { readonly rows: number; readonly cols: number } | null {
  const size = new Uint16Array(4);
  const [rows = 0, cols = 0] = terminalCalls().ioctl(fd, TIOCGWINSZ, ptr(size)) === 0 ? size : [];
  return rows === 0 || cols === 0 ? null : { rows, cols };
}
