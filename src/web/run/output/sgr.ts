/*
 * Styles of output, as `CSI … m` sets them. A style is a number: 5 bits for the colour of the text, 5 bits for the background,
 * and flags. A colour is 0 for the default, otherwise 1 more than its number among the 16 of a terminal.
 */

export const PLAIN_STYLE = 0;

const BACKGROUND_BITS = 5;
const COLOUR_BITS_MASK = 0x1f;
const FLAGS_FROM_BITS = 10;

/** Class names of the flags. The index is the number in SGR minus 1. */
const FLAG_NAMES = ["bold", "dim", "italic", "underline", "blink", "", "inverse", "hidden", "strike"] as const;

type Rgb = readonly [red: number, green: number, blue: number];

/** The 16 colours of a terminal: the values of xterm, and those of the theme for text and background. */
const BASIC: readonly { readonly xterm: Rgb; readonly text: string; readonly behind: string }[] = [
  { xterm: [0, 0, 0], text: "light-dark(#1a1c19, #8b918a)", behind: "light-dark(#d3d5ce, #282b28)" },
  { xterm: [205, 0, 0], text: "light-dark(#b3261e, #f2887f)", behind: "light-dark(#f6d5d2, #4b211d)" },
  { xterm: [0, 205, 0], text: "light-dark(#1c7145, #5fc58d)", behind: "light-dark(#cfe9d9, #1a3d2a)" },
  { xterm: [205, 205, 0], text: "light-dark(#87560a, #dba95a)", behind: "light-dark(#f3e2bd, #453314)" },
  { xterm: [0, 0, 238], text: "light-dark(#2c5aa0, #86abec)", behind: "light-dark(#d3e0f5, #20345a)" },
  { xterm: [205, 0, 205], text: "light-dark(#8a3d86, #d79bd3)", behind: "light-dark(#ecd5ea, #44264a)" },
  { xterm: [0, 205, 205], text: "light-dark(#0f6b73, #6cc7cf)", behind: "light-dark(#cdeaec, #163f43)" },
  { xterm: [229, 229, 229], text: "light-dark(#6b7069, #e8eae6)", behind: "light-dark(#f0f1ed, #3a3e3a)" },
  { xterm: [127, 127, 127], text: "light-dark(#5b605a, #a1a79f)", behind: "light-dark(#c7cac2, #373b37)" },
  { xterm: [255, 0, 0], text: "light-dark(#a3231b, #f7a59e)", behind: "light-dark(#f4c9c5, #5a2722)" },
  { xterm: [0, 255, 0], text: "light-dark(#17663b, #7ad6a3)", behind: "light-dark(#c1e3cf, #204a33)" },
  { xterm: [255, 255, 0], text: "light-dark(#7a5a00, #e8c07f)", behind: "light-dark(#efd9a8, #523e19)" },
  { xterm: [92, 92, 255], text: "light-dark(#3b64b0, #a5c1f2)", behind: "light-dark(#c5d6f2, #28406b)" },
  { xterm: [255, 0, 255], text: "light-dark(#7d3a94, #e4b8e1)", behind: "light-dark(#e6c8e3, #522f58)" },
  { xterm: [0, 255, 255], text: "light-dark(#12636b, #8dd8de)", behind: "light-dark(#bfe4e7, #1c4d52)" },
  { xterm: [255, 255, 255], text: "light-dark(#1a1c19, #ffffff)", behind: "light-dark(#ffffff, #4a4f4a)" },
];
/** Levels of red, green and blue in the cube of the 256 colours. */
const CUBE_LEVELS = [0, 95, 135, 175, 215, 255] as const;

/** The style after `CSI parameters m`. Ignores unknown numbers. */
export function styleAfter(style: number, parameters: string): number {
  // Colons separate the parts of one colour, as in 38:2::255:0:0.
  const codes = parameters.split(/[;:]/).map((text) => (text === "" ? 0 : Number(text)));
  let next = style;
  for (let at = 0; at < codes.length; at += 1) {
    const code = codes[at] ?? 0;
    if (code === 38 || code === 48) {
      const { colour, used } = extendedColour(codes.slice(at + 1), parameters.includes(":"));
      at += used;
      if (colour !== null) next = code === 38 ? withText(next, colour + 1) : withBehind(next, colour + 1);
    } else next = afterCode(next, code);
  }
  return next;
}

function afterCode(style: number, code: number): number {
  if (code === 0) return PLAIN_STYLE;
  if (code >= 1 && code <= 9) return style | flag(code);
  if (code === 22) return style & ~(flag(1) | flag(2));
  if (code >= 23 && code <= 29) return style & ~flag(code - 20);
  if (code >= 30 && code <= 37) return withText(style, code - 29);
  if (code === 39) return withText(style, 0);
  if (code >= 40 && code <= 47) return withBehind(style, code - 39);
  if (code === 49) return withBehind(style, 0);
  if (code >= 90 && code <= 97) return withText(style, code - 81);
  if (code >= 100 && code <= 107) return withBehind(style, code - 91);
  return style;
}

function flag(code: number): number {
  return 1 << (FLAGS_FROM_BITS + code - 1);
}

function withText(style: number, colour: number): number {
  return (style & ~COLOUR_BITS_MASK) | colour;
}

function withBehind(style: number, colour: number): number {
  return (style & ~(COLOUR_BITS_MASK << BACKGROUND_BITS)) | (colour << BACKGROUND_BITS);
}

/** The nearest of the 16 colours for the numbers after a 38 or 48, and the count of these numbers. */
function extendedColour(codes: readonly number[], hasColons: boolean): { colour: number | null; used: number } {
  if (codes[0] === 5) return { colour: nearest(ofPalette(codes[1] ?? 0)), used: 2 };
  if (codes[0] !== 2) return { colour: null, used: 1 };
  // With colons, the number of a colour space may precede the three components.
  const from = hasColons && codes.length > 4 ? 2 : 1;
  return { colour: nearest([codes[from] ?? 0, codes[from + 1] ?? 0, codes[from + 2] ?? 0]), used: from + 3 };
}

function ofPalette(number: number): Rgb {
  const basic = BASIC[number]?.xterm;
  if (basic !== undefined) return basic;
  if (number >= 232) return [8 + (number - 232) * 10, 8 + (number - 232) * 10, 8 + (number - 232) * 10];
  const cell = number - 16;
  const level = (step: number): number => CUBE_LEVELS[step % 6] ?? 0;
  return [level(Math.floor(cell / 36)), level(Math.floor(cell / 6)), level(cell)];
}

function nearest([red, green, blue]: Rgb): number {
  let best = 0;
  let least = Number.POSITIVE_INFINITY;
  BASIC.forEach(({ xterm: [r, g, b] }, index) => {
    const distance = (r - red) ** 2 + (g - green) ** 2 + (b - blue) ** 2;
    if (distance >= least) return;
    least = distance;
    best = index;
  });
  return best;
}

/** The colours of a style, as custom properties for the style sheet. They never contain text of a guest. */
export function colorsOf(style: number): Readonly<Record<"--sgr-text" | "--sgr-behind", string | undefined>> {
  const text = style & COLOUR_BITS_MASK;
  const behind = (style >> BACKGROUND_BITS) & COLOUR_BITS_MASK;
  return { "--sgr-text": BASIC[text - 1]?.text, "--sgr-behind": BASIC[behind - 1]?.behind };
}

/** The classes of a style. They never contain text of a guest. */
export function classesOf(style: number): string {
  const text = style & COLOUR_BITS_MASK;
  const behind = (style >> BACKGROUND_BITS) & COLOUR_BITS_MASK;
  const flags = FLAG_NAMES.filter((name, index) => name !== "" && (style & (1 << (FLAGS_FROM_BITS + index))) !== 0);
  return [
    ...(text === 0 ? [] : [`sgr-text-${text - 1}`]),
    ...(behind === 0 ? [] : [`sgr-behind-${behind - 1}`]),
    ...flags.map((name) => `sgr-${name}`),
  ].join(" ");
}
