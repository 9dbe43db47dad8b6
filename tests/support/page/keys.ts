import type { Locator } from "playwright-core";
import type { Tab } from "./tab.ts";

/** Stops of the Tab key that a person may be asked to pass. */
const STOPS_MAX = 60;

/**
 * Moves the focus with the Tab key until `target` has it, as somebody without a mouse does. Each stop on the way must be
 * seen: an outline, or a shadow, around what has the focus.
 * @throws Error when the focus does not come there, or is not seen somewhere
 */
export async function tabTo({ page }: Tab, target: Locator, key: "Tab" | "Shift+Tab" = "Tab"): Promise<void> {
  await target.first().waitFor();
  const passed: string[] = [];
  for (let stop = 0; stop < STOPS_MAX; stop++) {
    if (await target.first().evaluate((element) => element === document.activeElement)) return;
    await page.keyboard.press(key);
    const { name, isSeen } = await page.evaluate(() => {
      const element = document.activeElement ?? document.body;
      const label = element.getAttribute("aria-label") ?? element.textContent?.trim().slice(0, 40) ?? "";
      // Of a list, the row that has the focus in its place is marked, or the frame around all of it.
      const row = document.getElementById(element.getAttribute("aria-activedescendant") ?? "");
      const isOutlined = (one: Element | null): boolean => {
        if (one === null || one === document.body) return false;
        const { outlineStyle, outlineWidth } = getComputedStyle(one);
        return (outlineStyle !== "none" && Number.parseFloat(outlineWidth) >= 1) || isOutlined(one.parentElement);
      };
      return {
        name: `<${element.tagName.toLowerCase()}> ${label}`,
        isSeen:
          element === document.body ||
          isOutlined(row ?? element) ||
          isOutlined(element) ||
          getComputedStyle(element).boxShadow !== "none",
      };
    });
    passed.push(name);
    if (!isSeen) throw new Error(`the focus is not seen on ${name}`);
  }
  throw new Error(`${STOPS_MAX} stops did not lead to ${target}, but to:\n${passed.join("\n")}`);
}
