import axe, { type AxeResults } from "axe-core";
import type { Tab } from "./tab.ts";

/** WCAG 2.2 on the levels A and AA: the rules of each version that added some. */
const TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];

/** The violations that axe reports for the present view, one line for each element. */
export async function accessibilityProblems({ page }: Tab): Promise<string[]> {
  // The debugger evaluates it: the page's own policy allows no such script.
  await page.evaluate(axe.source);
  const results = await page.evaluate(async (tags): Promise<AxeResults> => {
    const { axe: own } = window as unknown as { axe: typeof axe };
    return await own.run(document, { runOnly: tags, resultTypes: ["violations"], preload: false });
  }, TAGS);
  return results.violations.flatMap(({ id, nodes }) =>
    nodes.map(
      ({ target, failureSummary = "" }) => `${id}: ${target.join(" ")}: ${failureSummary.replace(/\s+/g, " ")}`,
    ),
  );
}
