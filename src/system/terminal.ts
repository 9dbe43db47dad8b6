import { dlopen, FFIType, ptr } from "bun:ffi";
import { checked, LibcError } from "./libc.ts";

/** At least the size of glibc's struct termios on x86_64, in `bytes`. */
const TERMIOS_BYTES = 64;
/** TCSADRAIN: the change takes effect after all earlier output is sent. */
const DRAIN_MODE = 1;
const TIOCGWINSZ = 0x5413n;

/** Loaded on demand: most commands need no terminal. */
function terminalCalls() {
  return dlopen("libc.so.6", {
    tcgetattr: { args: [FFIType.i32, FFIType.ptr], returns: FFIType.i32 },
    tcsetattr: { args: [FFIType.i32, FFIType.i32, FFIType.ptr], returns: FFIType.i32 },
    cfmakeraw: { args: [FFIType.ptr], returns: FFIType.void },
    ioctl: { args: [FFIType.i32, FFIType.u64, FFIType.ptr], returns: FFIType.i32 },
  }).symbols;
}

/** Switches a terminal between raw mode and its original mode. */
export interface TerminalModes {
  /**
   * Raw mode: passes on every key at once, without echo and signals, and does not change the output. The runtime's own raw
   * mode does not fit a remote terminal, because it still turns newlines of the output into carriage return and newline.
   */
  raw(): void;
  /** Restores the original mode. Does nothing when the terminal is closed. */
  restore(): void;
}

/** Reads the current mode of a terminal. @throws LibcError when the descriptor is not a terminal */
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

/** Size of a terminal in characters; null when the descriptor is not a terminal or its size is not set. */
export function windowSize(fd: number): { readonly rows: number; readonly cols: number } | null {
  const size = new Uint16Array(4);
  const [rows = 0, cols = 0] = terminalCalls().ioctl(fd, TIOCGWINSZ, ptr(size)) === 0 ? size : [];
  return rows === 0 || cols === 0 ? null : { rows, cols };
}
