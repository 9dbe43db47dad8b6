/** Strokes of each icon on a grid of 16 by 16. */
const STROKES = {
  branch:
    "M4.5 4.5v7M4.5 8.5h4a3 3 0 0 0 3-3v-1M4.5 4.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3Z" +
    "M4.5 14.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3ZM11.5 4.5a1.5 1.5 0 1 0 0-3 1.5 1.5 0 0 0 0 3Z",
  run: "M4.5 2.8v10.4a.3.3 0 0 0 .5.25l8-5.2a.3.3 0 0 0 0-.5l-8-5.2a.3.3 0 0 0-.5.25Z",
  appliance: "M2.5 7.5 8 2.5l5.5 5M4 6.5v7h8v-7M6.5 13.5v-4h3v4",
  image: "m8 1.8 6 3.1-6 3.1-6-3.1 6-3.1ZM2 8l6 3.1L14 8M2 11.1l6 3.1 6-3.1",
  file: "M4 1.8h5l3.2 3.2v9.2H4V1.8ZM9 1.8V5h3.2",
  folder: "M1.8 4.2v8.6h12.4V5.4H8L6.4 3.4H1.8v.8Z",
  link: "M6.8 9.2a2.6 2.6 0 0 0 3.7 0l2.2-2.2a2.6 2.6 0 1 0-3.7-3.7l-.9.9M9.2 6.8a2.6 2.6 0 0 0-3.7 0L3.3 9A2.6 2.6 0 1 0 7 12.7l.9-.9",
  search: "M7 11.8a4.8 4.8 0 1 0 0-9.6 4.8 4.8 0 0 0 0 9.6ZM10.5 10.5l3.5 3.5",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  close: "m4 4 8 8M12 4l-8 8",
  check: "m3 8.5 3.2 3.2L13 4.8",
  copy: "M5.5 5.5v-3h8v8h-3M2.5 5.5h8v8h-8v-8Z",
  download: "M8 2.5v8M4.8 7.5 8 10.7l3.2-3.2M2.5 13.5h11",
  upload: "M8 10.5v-8M4.8 5.5 8 2.3l3.2 3.2M2.5 13.5h11",
  trash: "M2.5 4h11M6 4V2.5h4V4M4 4l.7 9.5h6.6L12 4M6.7 6.8l.2 4M9.3 6.8l-.2 4",
  tag: "M2.2 2.2h5.6l6 6-5.6 5.6-6-6V2.2ZM5 5h.01",
  more: "M4 8a.5.5 0 1 1-1 0 .5.5 0 0 1 1 0ZM8.5 8a.5.5 0 1 1-1 0 .5.5 0 0 1 1 0ZM13 8a.5.5 0 1 1-1 0 .5.5 0 0 1 1 0Z",
  right: "m6 3.5 4.5 4.5L6 12.5",
  down: "M3.5 6 8 10.5 12.5 6",
  up: "M3.5 10 8 5.5l4.5 4.5",
  left: "M10 3.5 5.5 8l4.5 4.5",
  stop: "M4 4h8v8H4z",
  terminal: "m3 4.5 3.5 3.5L3 11.5M8 11.5h5",
  compare: "M5.5 2v12M10.5 2v12M2.5 5l3-3 3 3M7.5 11l3 3 3-3",
  clock: "M8 14a6 6 0 1 0 0-12 6 6 0 0 0 0 12ZM8 4.8V8l2.2 1.6",
  warning: "M8 2.2 14.4 13.4H1.6L8 2.2ZM8 6.5v3.2M8 11.6h.01",
  sun: "M8 10.8a2.8 2.8 0 1 0 0-5.6 2.8 2.8 0 0 0 0 5.6ZM8 1.5v1M8 13.5v1M1.5 8h1M13.5 8h1M3.4 3.4l.7.7M11.9 11.9l.7.7M3.4 12.6l.7-.7M11.9 4.1l.7-.7",
  moon: "M13.5 9.5A6 6 0 0 1 6.5 2.5a6 6 0 1 0 7 7Z",
  system: "M1.8 3h12.4v8H1.8V3ZM5.5 13.5h5M8 11v2.5",
  help: "M8 14a6 6 0 1 0 0-12 6 6 0 0 0 0 12ZM6.2 6.4a1.8 1.8 0 1 1 2.6 1.7c-.6.3-.8.6-.8 1.2M8 11.4h.01",
  person: "M8 8a2.8 2.8 0 1 0 0-5.6A2.8 2.8 0 0 0 8 8ZM2.8 14c.5-2.6 2.6-4 5.2-4s4.7 1.4 5.2 4",
  reload: "M13.5 8A5.5 5.5 0 1 1 11.8 4M13.5 1.8v3.4h-3.4",
  filter: "M2 3.5h12M4.5 8h7M6.5 12.5h3",
  fit: "M2.5 5.5v-3h3M10.5 2.5h3v3M13.5 10.5v3h-3M5.5 13.5h-3v-3",
  key: "M5.5 13a3 3 0 1 0 0-6 3 3 0 0 0 0 6ZM7.6 7.9l5.9-5.4M11 4.8l1.8 2M9.2 6.4l1.3 1.5",
  disk: "M2.5 10.5h11v3h-11v-3ZM2.5 10.5l2-8h7l2 8M11 12h.01",
  network:
    "M8 14a6 6 0 1 0 0-12 6 6 0 0 0 0 12ZM2 8h12M8 2c2 1.8 2.6 3.8 2.6 6S10 12.2 8 14c-2-1.8-2.6-3.8-2.6-6S6 3.8 8 2Z",
} as const;

export type IconName = keyof typeof STROKES;

/** An icon next to a word, or on a labelled button: screen readers ignore it. */
export function Icon({ name }: { readonly name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 16 16" aria-hidden="true">
      <path d={STROKES[name]} />
    </svg>
  );
}
