import { mkdir } from "node:fs/promises";
import { join, resolve } from "node:path";
import { accessibilityProblems } from "./axe.ts";
import type { Tab } from "./tab.ts";

const SCREENSHOTS = resolve(import.meta.dir, "../../../build/screenshots");
const THEMES = ["light", "dark"] as const;
/** The smallest telephone, a laptop, and a 4K screen, in `CSS pixels`. */
const SIZES = [
  { width: 360, height: 740 },
  { width: 1280, height: 800 },
  { width: 3840, height: 2160 },
] as const;

/**
 * The problems of the present view, in both themes and at every width: violated rules of accessibility, and content beyond the
 * edge of the screen. Saves screenshots as build/screenshots/{name}-{theme}-{width}.png. Restores the tab's size and theme.
 */
export async function viewProblems(tab: Tab, name: string): Promise<string[]> {
  const { page } = tab;
  const size = page.viewportSize();
  await mkdir(SCREENSHOTS, { recursive: true });
  const problems: string[] = [];
  for (const theme of THEMES) {
    await page.emulateMedia({ colorScheme: theme });
    for (const { width, height } of SIZES) {
      await page.setViewportSize({ width, height });
      const where = `${name} in ${theme} at ${width} px`;
      problems.push(...(await overflow(tab)).map((what) => `${where}: ${what}`));
      // Targets that are large enough on a laptop are so on a larger screen.
      if (width < 3840) problems.push(...(await accessibilityProblems(tab)).map((what) => `${where}: ${what}`));
      await page.screenshot({ path: join(SCREENSHOTS, `${name}-${theme}-${width}.png`), animations: "disabled" });
    }
  }
  await page.emulateMedia({ colorScheme: null });
  if (size !== null) await page.setViewportSize(size);
  return problems;
}

/** Why the page scrolls sideways, if it does: the elements that reach beyond the screen. */
export async function overflow({ page }: Tab): Promise<string[]> {
  return await page.evaluate(() => {
    const { scrollWidth, clientWidth } = document.documentElement;
    if (scrollWidth <= clientWidth) return [];
    const wide = [...document.querySelectorAll("body *")].filter(
      (element) => element.getBoundingClientRect().right > clientWidth + 1,
    );
    const names = wide.slice(0, 5).map((element) => `<${element.tagName.toLowerCase()} class="${element.className}">`);
    return [`it is ${scrollWidth} px wide on a screen of ${clientWidth} px, by ${names.join(", ")}`];
  });
}

/** Waits until a view is shown and nothing of it is still a skeleton. */
export async function settled({ page }: Tab): Promise<void> {
  await page.getByRole("heading", { level: 1 }).first().waitFor();
  await page.waitForFunction(() => document.querySelector(".skeleton, .view-skeleton, [aria-busy=true]") === null);
}
