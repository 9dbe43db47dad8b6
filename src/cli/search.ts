import { answerOf } from "../client/client.ts";
import { downloadArchive, imageIdOf } from "../client/transfers.ts";
import type { GrepMatch } from "../client/types.ts";
import { given } from "../domain/given.ts";
import { LIMIT_MAX } from "../domain/tree/listing.ts";
import { CLIENT_OPTIONS, openClient } from "./client.ts";
import {
  type Command,
  command,
  EXIT_FAILED,
  expectPositionals,
  integerOption,
  JSON_OPTION,
  UsageError,
} from "./command.ts";
import { printable } from "./table.ts";

export const searchCommands: readonly Command[] = [
  command({
    name: "grep",
    summary: "find lines in the files of an image",
    synopsis: "IMAGE PATTERN [PATH...] [OPTIONS]",
    description:
      "IMAGE is a UUID or tag:NAME; PATTERN is a regular expression in RE2 syntax; each PATH is\n" +
      "absolute, / by default. With -e, there is no PATTERN: coppice grep IMAGE -e PATTERN [PATH...].\n" +
      "Binary files are skipped. The exit code is 1 when no line matches.",
    examples: [
      "coppice grep tag:work '(?i)error' /var/log --glob '*.log'",
      "coppice grep tag:work -e Error -e Warning -C 2 /srv /opt -g '!node_modules'",
    ],
    options: {
      regexp: {
        type: "string",
        short: "e",
        multiple: true,
        value: "PATTERN",
        doc: "pattern; a line must match one of them",
      },
      "ignore-case": { type: "boolean", short: "i", doc: "ignore case" },
      "smart-case": { type: "boolean", short: "S", doc: "ignore case unless a pattern has an upper-case letter" },
      "after-context": {
        type: "string",
        short: "A",
        value: "COUNT",
        doc: "also this many lines after each (up to 50)",
      },
      "before-context": { type: "string", short: "B", value: "COUNT", doc: "also this many lines before each" },
      context: { type: "string", short: "C", value: "COUNT", doc: "-A and -B together" },
      glob: {
        type: "string",
        short: "g",
        multiple: true,
        value: "PATTERN",
        doc: "only files that match: * ** ? [a-z] {a,b}; !PATTERN leaves out; the last that matches decides",
      },
      "max-count": { type: "string", short: "m", value: "COUNT", doc: "at most this many lines of each file" },
      limit: { type: "string", value: "COUNT", doc: "at most this many lines, up to 1000 (default: 1000)" },
      ...JSON_OPTION,
      ...CLIENT_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      const [reference = "", ...rest] = positionals;
      const patterns = options.regexp ?? rest.splice(0, 1);
      if (reference === "" || patterns.length === 0) expectPositionals(positionals, "IMAGE", "PATTERN");
      const context = integerOption("context", options.context, 0);
      const client = openClient(environment, options.url);
      const uuid = encodeURIComponent(await imageIdOf(client, reference));
      const query = {
        pattern: patterns,
        limit: integerOption("limit", options.limit, 1) ?? LIMIT_MAX,
        ...given({
          // The appliance reads paths as bytes; Eden writes text as UTF-8.
          path: rest.length > 0 ? rest : undefined,
          glob: options.glob,
          max_count: integerOption("max-count", options["max-count"], 1),
          before: integerOption("before-context", options["before-context"], 0) ?? context,
          after: integerOption("after-context", options["after-context"], 0) ?? context,
          case: caseOf(options),
        }),
      };
      const result = await answerOf(client.v1.inspect({ uuid }).grep.get({ query }));
      await io.stdout(options.json === true ? `${JSON.stringify(result)}\n` : [...linesOf(result.matches)].join(""));
      if (result.truncated)
        io.stderr(`there may be more: the search reached its limit of ${result.truncated_by.join(", ")}\n`);
      return result.matches.length === 0 ? EXIT_FAILED : 0;
    },
  }),
  command({
    name: "archive",
    summary: "write a directory of an image as a tar archive",
    synopsis: "IMAGE PATH > FILE.tar",
    description:
      "IMAGE is a UUID or tag:NAME; PATH is absolute. Owners, modes, times, links, extended\n" +
      "attributes and holes are kept; names are relative to PATH.",
    examples: ["coppice archive tag:work /srv | tar -x --xattrs -C /tmp/srv"],
    options: {
      gzip: { type: "boolean", doc: "compress the archive" },
      ...CLIENT_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      const [reference = "", path = ""] = expectPositionals(positionals, "IMAGE", "PATH");
      if (io.stdoutIsTerminal) throw new UsageError("an archive is not for a terminal: redirect it");
      const client = openClient(environment, options.url);
      const image = await imageIdOf(client, reference);
      const encoding = options.gzip === true ? "gzip" : "identity";
      const response = await downloadArchive(client, { image, path, encoding });
      for await (const chunk of response.body ?? []) await io.stdout(chunk);
      return 0;
    },
  }),
];

/** The case that the options ask for; `--ignore-case` wins. */
function caseOf(options: { readonly [name in "ignore-case" | "smart-case"]?: boolean | undefined }) {
  if (options["ignore-case"] === true) return "insensitive" as const;
  return options["smart-case"] === true ? ("smart" as const) : undefined;
}

/** The lines as grep prints them: groups that do not touch are separated when there are lines of context. */
function* linesOf(matches: readonly GrepMatch[]): Generator<string, void, undefined> {
  const hasContext = matches.some(({ type }) => type === "context");
  let last: GrepMatch | null = null;
  for (const match of matches) {
    const { path, line, text, type } = match;
    if (hasContext && last !== null && (last.path !== path || last.line + 1 !== line)) yield "--\n";
    const separator = type === "context" ? "-" : ":";
    yield `${printable(path)}${separator}${line}${separator}${printable(text)}\n`;
    last = match;
  }
}
