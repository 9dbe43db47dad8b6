import { answerOf } from "../client/client.ts";
import { imageIdOf } from "../client/transfers.ts";
import type { Blame, PathLog } from "../client/types.ts";
import { given } from "../domain/given.ts";
import { shownSize } from "../domain/text/shown.ts";
import { LIMIT_MAX } from "../domain/tree/listing.ts";
import { CLIENT_OPTIONS, openClient } from "./client.ts";
import { type Command, command, expectPositionals, integerOption, JSON_OPTION } from "./command.ts";
import { commandOf } from "./history.ts";
import { printable, table } from "./table.ts";

const IMAGE = "IMAGE is a UUID or tag:NAME; PATH is absolute. A symlink at its end is not followed.";

/** Commands that tell who changed a path. */
export const pathHistoryCommands: readonly Command[] = [
  command({
    name: "log",
    summary: "list the steps that changed a path of an image",
    synopsis: "IMAGE -- PATH [OPTIONS]",
    description:
      `${IMAGE}\n` +
      "The newest step comes first, and the import last. PATH may be removed in IMAGE. A change of a directory\n" +
      "is one of itself, or (below) of something in it.",
    examples: ["coppice log tag:work -- /etc/passwd"],
    options: {
      limit: { type: "string", value: "COUNT", doc: "at most this many (default: all)" },
      ...JSON_OPTION,
      ...CLIENT_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      const [reference = "", path = ""] = expectPositionals(positionals, "IMAGE", "PATH");
      const countMax = integerOption("limit", options.limit, 1) ?? Number.POSITIVE_INFINITY;
      const client = openClient(environment, options.url);
      const uuid = encodeURIComponent(await imageIdOf(client, reference));
      const items: PathLog["items"] = [];
      for (let cursor: string | undefined, isLast = false; !isLast; isLast = cursor === undefined) {
        const query = { path, ...given({ cursor }), limit: Math.min(LIMIT_MAX, countMax - items.length) };
        const page = await answerOf(client.v1.inspect({ uuid }).log.get({ query }));
        items.push(...page.items);
        cursor = items.length < countMax ? page.next : undefined;
      }
      if (options.json === true) {
        await io.stdout(items.map((item) => `${JSON.stringify(item)}\n`).join(""));
        return 0;
      }
      const rows = items.map(({ change, below, unknown_steps, size_bytes, type, step }) => [
        step.uuid,
        step.created_at,
        below === true ? "below" : change,
        size_bytes === undefined || type !== "file" ? "-" : shownSize(size_bytes),
        step.exit_code === undefined ? "-" : String(step.exit_code),
        `${unknownText(unknown_steps)}${commandOf(step)}`,
      ]);
      await io.stdout(table(["UUID", "CREATED", "CHANGE", "SIZE", "EXIT", "MADE BY"], rows, io.columns));
      return 0;
    },
  }),
  command({
    name: "blame",
    summary: "name the step that changed a file, or each entry of a directory, last",
    synopsis: "IMAGE PATH [OPTIONS]",
    description: `${IMAGE}\nFor a directory, each of its entries has a line; a change of something in it counts.`,
    examples: ["coppice blame tag:work /usr/local/bin"],
    options: { ...JSON_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const [reference = "", path = ""] = expectPositionals(positionals, "IMAGE", "PATH");
      const client = openClient(environment, options.url);
      const uuid = encodeURIComponent(await imageIdOf(client, reference));
      const rows: string[][] = [];
      for (let cursor: string | undefined, isLast = false; !isLast; isLast = cursor === undefined) {
        const query = { path, ...given({ cursor }), limit: LIMIT_MAX };
        const page: Blame = await answerOf(client.v1.inspect({ uuid }).blame.get({ query }));
        if (options.json === true) await io.stdout(`${JSON.stringify(page)}\n`);
        else rows.push(...rowsOf(page));
        cursor = page.next;
      }
      if (options.json !== true)
        await io.stdout(table(["UUID", "CREATED", "CHANGE", "NAME", "MADE BY"], rows, io.columns));
      return 0;
    },
  }),
];

function rowsOf({ items, steps }: Blame): string[][] {
  const byId = new Map(steps.map((step) => [step.uuid, step]));
  return items.map(({ name, type, image = "", change, below, unknown_steps }) => {
    const step = byId.get(image);
    const label = `${printable(name)}${type === "directory" ? "/" : ""}`;
    if (step === undefined) return ["-", "-", "-", label, "not found in time"];
    const origin = `${unknownText(unknown_steps)}${commandOf(step)}`;
    return [step.uuid, step.created_at, below === true ? "below" : (change ?? "-"), label, origin];
  });
}

/** Says that another step may have made a change. */
function unknownText(count: number | undefined): string {
  return count === undefined ? "" : `(or one of ${count} deleted states before) `;
}
