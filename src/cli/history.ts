import { answerOf } from "../client/client.ts";
import { ResponseError } from "../client/errors.ts";
import { imageIdOf } from "../client/transfers.ts";
import type { DiffItem, ImageStep } from "../client/types.ts";
import { given } from "../domain/given.ts";
import { shellWord } from "../domain/text/shell-word.ts";
import { shownSize } from "../domain/text/shown.ts";
import { CLIENT_OPTIONS, exitCodeOf, openClient } from "./client.ts";
import { type Command, command, EXIT_FAILED, expectPositionals, JSON_OPTION } from "./command.ts";
import { cut, printable, table } from "./table.ts";

const DESCRIPTION = "IMAGE is a UUID or tag:NAME.";
/** Items of the largest page that the appliance gives. */
const PAGE_COUNT = 1000;
/** Levels of a tree that fit a terminal. */
const NESTING_MAX = 20;
const LAST = "└─ ";

export const historyCommands: readonly Command[] = [
  command({
    name: "image show",
    summary: "show an image and its history",
    synopsis: "IMAGE [OPTIONS]",
    description: `${DESCRIPTION} The steps are listed from the image back to its import.`,
    options: { ...JSON_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const [reference = ""] = expectPositionals(positionals, "IMAGE");
      const client = openClient(environment, options.url);
      const route = client.v1.images({ uuid: encodeURIComponent(await imageIdOf(client, reference)) });
      const image = await answerOf(route.get());
      const steps = await allSteps((page) => answerOf(route.lineage.get({ query: page })));
      if (options.json === true) {
        await io.stdout(`${JSON.stringify({ ...image, lineage: steps })}\n`);
        return 0;
      }
      const rows = steps.map((step) => [
        step.uuid,
        step.created_at,
        shownSize(step.size_bytes),
        step.exit_code === undefined ? "-" : String(step.exit_code),
        `${nameOf(step)}${commandOf(step)}`,
      ]);
      await io.stdout(table(["UUID", "CREATED", "ADDED", "EXIT", "MADE BY"], rows, io.columns));
      return 0;
    },
  }),
  command({
    name: "image tree",
    summary: "draw the tree of images made from an image",
    synopsis: "IMAGE [OPTIONS]",
    description:
      `${DESCRIPTION} Each line is an image: its size, its tag, and the command that made it.\n` +
      `Below ${NESTING_MAX} levels a chain continues in one column.`,
    examples: ["coppice image tree tag:busybox"],
    options: { ...JSON_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const [reference = ""] = expectPositionals(positionals, "IMAGE");
      const client = openClient(environment, options.url);
      const route = client.v1.images({ uuid: encodeURIComponent(await imageIdOf(client, reference)) });
      const [root] = await answerOf(route.lineage.get({ query: { limit: 1 } }));
      const children = await allSteps((page) => answerOf(route.children.get({ query: { recursive: true, ...page } })));
      const steps = [...(root === undefined ? [] : [root]), ...children];
      await io.stdout(options.json === true ? `${JSON.stringify(steps)}\n` : drawTree(steps, io.columns));
      return 0;
    },
  }),
  command({
    name: "image rm",
    summary: "delete images",
    synopsis: "IMAGE... [OPTIONS]",
    description:
      `${DESCRIPTION} Images that were made from IMAGE stay, with the layers\n` +
      "that they need. An image that a waiting or running instance uses is not deleted.",
    options: { ...JSON_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      if (positionals.length === 0) expectPositionals(positionals, "IMAGE");
      const client = openClient(environment, options.url);
      const deleted: string[] = [];
      const failures: ResponseError[] = [];
      for (const reference of positionals) {
        try {
          const id = await imageIdOf(client, reference);
          await answerOf(client.v1.images({ uuid: encodeURIComponent(id) }).delete());
          deleted.push(id);
        } catch (error) {
          // The other images are deleted nevertheless.
          if (!(error instanceof ResponseError)) throw error;
          failures.push(error);
          io.stderr(`coppice image rm: ${reference}: ${error.message}\n`);
        }
      }
      if (options.json === true) await io.stdout(`${JSON.stringify(deleted)}\n`);
      return Math.max(0, ...failures.map((error) => exitCodeOf(error) ?? EXIT_FAILED));
    },
  }),
  command({
    name: "diff",
    summary: "list the differences between two images",
    synopsis: "IMAGE [OPTIONS]",
    description: `${DESCRIPTION} A is added, C changed, D removed; sizes are those in the image.`,
    examples: ["coppice diff tag:work", "coppice diff tag:work --against tag:release"],
    options: {
      against: { type: "string", value: "IMAGE", doc: "the other image (default: the parent of IMAGE)" },
      ...JSON_OPTION,
      ...CLIENT_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      const [reference = ""] = expectPositionals(positionals, "IMAGE");
      const client = openClient(environment, options.url);
      const uuid = encodeURIComponent(await imageIdOf(client, reference));
      const against = options.against === undefined ? undefined : await imageIdOf(client, options.against);
      for (let cursor: string | undefined, isLast = false; !isLast; isLast = cursor === undefined) {
        const query = { ...given({ against, cursor }), limit: PAGE_COUNT };
        const page = await answerOf(client.v1.images({ uuid }).diff.get({ query }));
        const lines = page.items.map((item) => (options.json === true ? JSON.stringify(item) : diffLine(item)));
        if (lines.length > 0) await io.stdout(`${lines.join("\n")}\n`);
        cursor = page.next;
      }
      return 0;
    },
  }),
];

type Read = (page: { readonly limit: number; readonly offset: number }) => Promise<ImageStep[]>;

async function allSteps(read: Read): Promise<ImageStep[]> {
  const steps: ImageStep[] = [];
  for (;;) {
    const page = await read({ limit: PAGE_COUNT, offset: steps.length });
    steps.push(...page);
    if (page.length < PAGE_COUNT) return steps;
  }
}

/**
 * Draws the tree of the steps; the first step is the root, and every parent comes before its children.
 * @param columns characters of a line; null: as wide as it is
 */
export function drawTree(steps: readonly ImageStep[], columns: number | null = null): string {
  const [root] = steps;
  if (root === undefined) return "";
  const children = new Map<string, ImageStep[]>();
  for (const step of steps) {
    const siblings = children.get(step.parent ?? "") ?? [];
    siblings.push(step);
    children.set(step.parent ?? "", siblings);
  }
  const lines: string[] = [];
  const pending = [{ step: root, own: "", below: "", depth: 0 }];
  for (let next = pending.pop(); next !== undefined; next = pending.pop()) {
    const { step, own, below, depth } = next;
    lines.push(`${own}${step.uuid}  ${shownSize(step.size_bytes)}  ${nameOf(step)}${makingOf(step)}`);
    const childSteps = children.get(step.uuid) ?? [];
    const [only] = childSteps;
    // A last child directly below a last child is its only child: the chain can continue in the same column.
    if (only !== undefined && childSteps.length === 1 && depth >= NESTING_MAX && own.endsWith(LAST)) {
      pending.push({ ...next, step: only });
      continue;
    }
    for (const [index, child] of [...childSteps.entries()].reverse()) {
      const isLast = index === childSteps.length - 1;
      pending.push({
        step: child,
        own: `${below}${isLast ? LAST : "├─ "}`,
        below: `${below}${isLast ? "   " : "│  "}`,
        depth: depth + 1,
      });
    }
  }
  return `${lines.map((line) => (columns === null ? line : cut(line, columns))).join("\n")}\n`;
}

function nameOf({ tag, deleted }: ImageStep): string {
  return `${tag === undefined ? "" : `[${tag}] `}${deleted ? "(deleted) " : ""}`;
}

function makingOf(step: ImageStep): string {
  const network = step.network === true ? " (network)" : "";
  if (step.kind === "checkpoint") return `${commandOf(step)} (checkpoint)${network}`;
  const exit = step.timed_out === true ? " (timed out)" : step.exit_code ? ` (exit ${step.exit_code})` : "";
  return `${commandOf(step)}${exit}${network}`;
}

/** The command as a person would type it, or the source of an import. */
export function commandOf(step: ImageStep): string {
  if (step.command === undefined) return printable(step.source ?? (step.kind === "instance" ? "a run" : "an import"));
  const [shell, flag, script] = step.command;
  const isScript = shell === "/bin/sh" && flag === "-c" && script !== undefined && step.command.length === 3;
  const text = isScript ? (script ?? "") : step.command.map(shellWord).join(" ");
  return `${printable(text)}${step.command_truncated === true ? " …" : ""}`;
}

const LETTERS = { added: "A", changed: "C", removed: "D" } as const;

function diffLine(item: DiffItem): string {
  const size = item.size_bytes ?? item.previous_size_bytes ?? 0;
  const slash = item.type === "directory" ? "/" : "";
  return `${LETTERS[item.change]} ${String(size).padStart(12)} ${printable(item.path)}${item.path === "/" ? "" : slash}`;
}
