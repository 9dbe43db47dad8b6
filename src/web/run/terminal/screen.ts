import { FitAddon } from "@xterm/addon-fit";
import { Terminal } from "@xterm/xterm";
import "@xterm/xterm/css/xterm.css";
import { BoundedMarks } from "./bounded-marks.ts";
import { pastedText } from "./paste.ts";

/** Colours of the theme, in a form that xterm.js accepts. */
export interface ScreenColors {
  readonly background: string;
  readonly foreground: string;
  readonly cursor: string;
  readonly selection: string;
}

export interface ScreenOptions {
  readonly place: HTMLElement;
  readonly colors: ScreenColors;
  readonly isDark: boolean;
  readonly fontFamily: string;
  /** in `CSS pixels` */
  readonly fontSize: number;
  /** called with typed and pasted text, and with the replies of the terminal to queries of the program */
  readonly onInput: (bytes: Uint8Array) => void;
  readonly onSize: (size: { readonly rows: number; readonly cols: number }) => void;
  /** decides whether text of several lines may be pasted */
  readonly mayPaste: (text: string) => Promise<boolean>;
  /** called when the keys that leave the terminal are pressed */
  readonly onLeave: () => void;
}

/** Lines of the scrollback. */
const SCROLLBACK_COUNT = 5000;
/** Bytes that may wait to be drawn; `write` waits beyond that. */
const WAITING_BYTES_MAX = 262_144;
/**
 * Operating system commands (OSC) that change or query the environment of the terminal: titles, colours of the theme, links,
 * the working directory, notifications, and the clipboard.
 */
const REFUSED_COMMANDS = [
  0, 1, 2, 4, 5, 7, 8, 9, 10, 11, 12, 13, 17, 19, 50, 52, 104, 110, 111, 112, 133, 633, 777, 1337,
];
/**
 * Sequences that xterm.js repeats as often as their parameter says, up to 2,147,483,647 times: tabs, insertion, deletion and
 * scrolling of lines, and repetition of a character.
 */
const REPEATED_SEQUENCES = ["I", "Z", "L", "M", "S", "T", "b"] as const;
/** Bytes per piece: xterm.js yields to the page only between two pieces. */
const PIECE_BYTES = 4096;

/** A terminal of xterm.js that only shows the text of its program. */
export class Screen implements Disposable {
  readonly #terminal: Terminal;
  readonly #fit = new FitAddon();
  readonly #observer: ResizeObserver;
  readonly #encoder = new TextEncoder();
  readonly #marks = new BoundedMarks();
  #waitingBytes = 0;
  #drained: (() => void) | null = null;

  constructor(options: ScreenOptions) {
    const { place, colors, isDark, fontFamily, fontSize, onInput, onSize, mayPaste, onLeave } = options;
    const terminal = new Terminal({
      fontFamily,
      fontSize,
      scrollback: SCROLLBACK_COUNT,
      allowProposedApi: false,
      screenReaderMode: true,
      convertEol: false,
      cursorBlink: false,
      macOptionIsMeta: true,
      minimumContrastRatio: 4.5,
      windowOptions: {},
      // It would log each byte that means nothing to it, of which programs may print millions.
      logLevel: "off",
      theme: themeOf(colors, isDark),
      linkHandler: { activate: () => undefined },
    });
    this.#terminal = terminal;
    for (const number of REFUSED_COMMANDS) terminal.parser.registerOscHandler(number, () => true);
    // No program needs more repetitions than the screen has rows or columns.
    const isTooMany = ([count]: (number | number[])[]) => Number(count) > Math.max(terminal.rows, terminal.cols);
    for (const final of REPEATED_SEQUENCES) terminal.parser.registerCsiHandler({ final }, isTooMany);
    terminal.loadAddon(this.#fit);
    withNonce(place.ownerDocument, () => terminal.open(place));
    terminal.onData((text) => onInput(this.#encoder.encode(text)));
    terminal.onBinary((text) => onInput(Uint8Array.from(text, (character) => character.charCodeAt(0))));
    terminal.onResize(({ rows, cols }) => onSize({ rows, cols }));
    terminal.attachCustomKeyEventHandler((event) => {
      // The program gets Tab, so another key has to move the focus out of the terminal.
      const isLeave = event.ctrlKey && event.altKey && event.key === "Escape";
      if (isLeave && event.type === "keydown") onLeave();
      return !isLeave;
    });
    place.addEventListener("paste", (event) => void this.#onPaste(event, mayPaste), { capture: true });
    this.#fit.fit();
    onSize(this.size);
    this.#observer = new ResizeObserver(() => this.#fit.fit());
    this.#observer.observe(place);
  }

  get size(): { readonly rows: number; readonly cols: number } {
    return { rows: this.#terminal.rows, cols: this.#terminal.cols };
  }

  /** Shows output. Resolves when there is room for more. */
  async write(bytes: Uint8Array): Promise<void> {
    for (let at = 0; at < bytes.byteLength; at += PIECE_BYTES) this.#writePiece(bytes.subarray(at, at + PIECE_BYTES));
    if (this.#waitingBytes <= WAITING_BYTES_MAX) return;
    await new Promise<void>((resolve) => {
      this.#drained = resolve;
    });
    this.#drained = null;
  }

  #writePiece(bytes: Uint8Array): void {
    this.#waitingBytes += bytes.byteLength;
    this.#terminal.write(this.#marks.text(bytes), () => {
      this.#waitingBytes -= bytes.byteLength;
      if (this.#waitingBytes <= WAITING_BYTES_MAX / 2) this.#drained?.();
    });
  }

  /** Resolves when all output is drawn. */
  settled(): Promise<void> {
    return new Promise((resolve) => this.#terminal.write("", resolve));
  }

  setColors(colors: ScreenColors, isDark: boolean): void {
    this.#terminal.options.theme = themeOf(colors, isDark);
  }

  focus(): void {
    this.#terminal.focus();
  }

  blur(): void {
    this.#terminal.blur();
  }

  /** Stops input. */
  close(): void {
    this.#terminal.options.disableStdin = true;
    this.#terminal.options.cursorInactiveStyle = "none";
  }

  [Symbol.dispose](): void {
    this.#observer.disconnect();
    this.#terminal.dispose();
  }

  async #onPaste(event: ClipboardEvent, mayPaste: ScreenOptions["mayPaste"]): Promise<void> {
    event.preventDefault();
    event.stopPropagation();
    const text = pastedText(event.clipboardData?.getData("text/plain") ?? "");
    if (text === "") return;
    if (/[\r\n]/.test(text) && !(await mayPaste(text))) return;
    this.#terminal.paste(text);
  }
}

/** The theme with the 16 colours of terminals. xterm.js adjusts them to the contrast that text needs. */
function themeOf({ background, foreground, cursor, selection }: ScreenColors, isDark: boolean) {
  const basic = isDark ? DARK : LIGHT;
  return { ...basic, background, foreground, cursor, cursorAccent: background, selectionBackground: selection };
}

const LIGHT = {
  black: "#1a1c19",
  red: "#b3261e",
  green: "#1c7145",
  yellow: "#87560a",
  blue: "#2c5aa0",
  magenta: "#8a3d86",
  cyan: "#0f6b73",
  white: "#d3d5ce",
  brightBlack: "#5b605a",
  brightRed: "#c7382f",
  brightGreen: "#24844f",
  brightYellow: "#9a6410",
  brightBlue: "#3b64b0",
  brightMagenta: "#9d4d99",
  brightCyan: "#177c85",
  brightWhite: "#f2f3f0",
};
const DARK = {
  black: "#373b37",
  red: "#f2887f",
  green: "#5fc58d",
  yellow: "#dba95a",
  blue: "#86abec",
  magenta: "#d79bd3",
  cyan: "#6cc7cf",
  white: "#e8eae6",
  brightBlack: "#8b918a",
  brightRed: "#f7a59e",
  brightGreen: "#7ad6a3",
  brightYellow: "#e8c07f",
  brightBlue: "#a5c1f2",
  brightMagenta: "#e4b8e1",
  brightCyan: "#8dd8de",
  brightWhite: "#ffffff",
};

/** Declarations that xterm.js writes into the `style` attribute of spans. */
const COLOR_DECLARATION = /(?<![\w-])(color|background-color)\s*:\s*([^;]+);/g;

/**
 * xterm.js sets the colours of cells by the `style` attribute, which the Content-Security-Policy of the page forbids; the
 * object model is allowed. xterm.js creates the spans itself, so this replaces the method of all spans.
 */
function letSpansHaveColors(): void {
  HTMLSpanElement.prototype.setAttribute = function setAttribute(name: string, value: string): void {
    if (name !== "style") {
      Element.prototype.setAttribute.call(this, name, value);
      return;
    }
    for (const [, property = "", color = ""] of value.matchAll(COLOR_DECLARATION))
      this.style.setProperty(property, color);
  };
}
letSpansHaveColors();

/** The nonce that the Content-Security-Policy requires of style elements. */
function nonce(document: Document): string {
  return document.querySelector<HTMLMetaElement>('meta[name="csp-nonce"]')?.nonce ?? "";
}

/** Sets the nonce of all style elements that `open` creates. */
function withNonce(document: Document, open: () => void): void {
  const create = document.createElement;
  using _own = {
    [Symbol.dispose]: () => {
      document.createElement = create;
    },
  };
  document.createElement = ((name: string, options?: ElementCreationOptions) => {
    const element = create.call(document, name, options);
    if (element instanceof HTMLStyleElement) element.nonce = nonce(document);
    return element;
  }) as typeof create;
  open();
}
