import type { Locator, Page } from "playwright-core";
import { until } from "../waiting.ts";
import type { Tab } from "./tab.ts";

/** Stops of the Tab key that a person may be asked to pass. */
const STOPS_MAX = 60;

/**
 * Moves the focus with the Tab key until `target` has it, as a user without a mouse does. Each stop on the way must be
 * visible: an outline, or a shadow, around the focused element.
 * @throws Error if the focus does not arrive, or is invisible at a stop
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

/** Presses the keys of a sequence, such as `gr`, without a pause: the page waits only so long for the next key. */
export async function pressSequence(page: Page, keys: string): Promise<void> {
  await Promise.all([...keys].map((key) => page.keyboard.press(key)));
}

/** The row of the list that has the focus; the text is empty where no list has it. */
async function activeRow(page: Page): Promise<{ readonly id: string; readonly text: string }> {
  return await page.evaluate(() => {
    const id = document.activeElement?.getAttribute("aria-activedescendant") ?? "";
    return { id, text: document.getElementById(id)?.textContent ?? "" };
  });
}

/**
 * Presses a key that leads to another row of the list that has the focus.
 * @returns the text of that row
 * @throws Error when no other row becomes the active one
 */
export async function pressToRow(page: Page, key: string): Promise<string> {
  const before = await activeRow(page);
  await page.keyboard.press(key);
  let row = before;
  await until(`${key} leads on from ${before.text}`, async () => {
    row = await activeRow(page);
    return row.id !== before.id && row.text !== "";
  });
  return row.text;
}

/**
 * Goes down from the first row of the list that has, or is about to have, the focus to the row that begins with `name`, and
 * opens it.
 */
export async function choose({ page }: Tab, name: string): Promise<void> {
  await until(`a list has the focus, on the way to ${name}`, async () => (await activeRow(page)).text !== "");
  await page.keyboard.press("Home");
  let text = "";
  await until("Home leads to the first row", async () => {
    const row = await activeRow(page);
    text = row.text;
    return row.id.endsWith("-0");
  });
  while (!text.startsWith(name)) text = await pressToRow(page, "ArrowDown");
  await page.keyboard.press("Enter");
}

/**
 * Presses keys in one turn of the page, which follows each but draws nothing meanwhile: so quick is a person on a busy
 * machine. Of what the browser itself does at a key, only the click or the submission by Enter is done.
 * @param text is written before into the field that has the focus
 */
export async function pressAtOnce(page: Page, keys: readonly string[], text?: string): Promise<void> {
  await page.evaluate(
    async ({ all, written }) => {
      // Components are drawn into the document in microtasks.
      const follow = async () => {
        for (let turn = 0; turn < 20; turn++) await null;
      };
      const focused = () => document.activeElement ?? document.body;
      const field = focused();
      if (written !== undefined && field instanceof HTMLInputElement) {
        field.value = written;
        field.dispatchEvent(new InputEvent("input", { bubbles: true }));
        await follow();
      }
      for (const key of all) {
        const target = focused();
        const isLeft = target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
        if (isLeft && key === "Enter") {
          if (target instanceof HTMLInputElement) target.form?.requestSubmit();
          else if (target.matches("a, button")) (target as HTMLElement).click();
        }
        await follow();
      }
    },
    { all: keys, written: text },
  );
}
