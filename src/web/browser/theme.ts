import { useEffect, useState } from "preact/hooks";
import { createStore, useStore } from "../data/store.ts";

/** The chosen theme. */
export type ThemeChoice = "system" | "light" | "dark";

const KEY = "coppice.theme";
const dark = matchMedia("(prefers-color-scheme: dark)");

function chosen(): ThemeChoice {
  const value = localStorage.getItem(KEY);
  return value === "light" || value === "dark" ? value : "system";
}

export const themeChoice = createStore<ThemeChoice>(chosen());
/** The theme that is seen. */
const theme = createStore<"light" | "dark">(seen());

function seen(): "light" | "dark" {
  const choice = themeChoice.get();
  if (choice !== "system") return choice;
  return dark.matches ? "dark" : "light";
}

function apply(): void {
  const choice = themeChoice.get();
  if (choice === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = choice;
  theme.set(seen());
}

/** Follows the choice, the system, and the choice of other tabs; called once. */
export function startTheme(): void {
  apply();
  themeChoice.subscribe(apply);
  dark.addEventListener("change", apply);
  window.addEventListener("storage", ({ key }) => {
    if (key === KEY) themeChoice.set(chosen());
  });
}

export function chooseTheme(choice: ThemeChoice): void {
  if (choice === "system") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, choice);
  themeChoice.set(choice);
}

/** The visible theme; the component is redrawn when it changes. */
export function useTheme(): "light" | "dark" {
  return useStore(theme);
}

/**
 * A colour of the style sheet as a value that a canvas takes, such as `rgb(31, 111, 67)`.
 * @param name of a token, such as `--accent`
 */
export function colorOf(name: `--${string}`): string {
  const probe = document.createElement("span");
  probe.style.color = `var(${name})`;
  probe.hidden = true;
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

/** Colours of the style sheet for canvases, in the theme that is seen. @param names are the same at every drawing */
export function useColors<Name extends `--${string}`>(names: readonly Name[]): Readonly<Record<Name, string>> {
  const now = useTheme();
  const read = () => Object.fromEntries(names.map((name) => [name, colorOf(name)])) as Record<Name, string>;
  const [colors, setColors] = useState(read);
  useEffect(() => setColors(read()), [now]);
  return colors;
}
