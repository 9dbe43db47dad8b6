/** Where the browser keeps what was asked for; tabs share it. */
const KEPT_AT = "coppice.tags";
/** Wishes that are kept, the newest. */
const WISHES_COUNT_MAX = 64;

/** A run and the tag for its result, as one line: a tag of a link may have line feeds. */
function wishOf(run: string, tag: string): string {
  return JSON.stringify([run, tag]);
}

function wishes(): string[] {
  return (localStorage.getItem(KEPT_AT) ?? "").split("\n").filter((wish) => wish !== "");
}

function keep(kept: readonly string[]): void {
  localStorage.setItem(KEPT_AT, kept.join("\n"));
}

/** Remembers that a person asked in this browser for a tag for the result of a run. */
export function wishTag(run: string, tag: string): void {
  forgetWish(run, tag);
  keep([...wishes(), wishOf(run, tag)].slice(-WISHES_COUNT_MAX));
}

/** Forgets it once it is fulfilled: the tag may move on, and the link be opened again. */
export function forgetWish(run: string, tag: string): void {
  keep(wishes().filter((wish) => wish !== wishOf(run, tag)));
}

/** True if a person asked for it in this browser; a link alone proves nothing. */
export function isWished(run: string, tag: string): boolean {
  return wishes().includes(wishOf(run, tag));
}
