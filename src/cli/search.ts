import { answerOf } from "../client/client.ts";
import { given } from "../client/given.ts";
import { downloadArchive, imageIdOf } from "../client/transfers.ts";
import type { QueryPath } from "../client/types.ts";
import { LIMIT_MAX } from "../domain/listing.ts";
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
    synopsis: "IMAGE PATTERN [PATH] [OPTIONS]",
    description:
      "IMAGE is a UUID or tag:NAME; PATTERN is a regular expression in RE2 syntax; PATH is\n" +
      "absolute, / by default. Binary files are skipped. The exit code is 1 when nothing is found.",
    examples: ["coppice grep tag:work '(?i)error' /var/log --glob '*.log'"],
    options: {
      glob: { type: "string", value: "PATTERN", doc: "only files that match: * ** ? [a-z] {a,b}" },
      limit: { type: "string", value: "COUNT", doc: "at most this many lines, up to 1000 (default: 1000)" },
      ...JSON_OPTION,
      ...CLIENT_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      const names = positionals.length > 2 ? ["IMAGE", "PATTERN", "PATH"] : ["IMAGE", "PATTERN"];
      const [reference = "", pattern = "", path] = expectPositionals(positionals, ...names);
      const client = openClient(environment, options.url);
      const limit = integerOption("limit", options.limit, 1) ?? LIMIT_MAX;
      const uuid = encodeURIComponent(await imageIdOf(client, reference));
      // The appliance takes the path as bytes; Eden writes text as those of its UTF-8.
      const query = { pattern, ...given({ path: path as QueryPath | undefined, glob: options.glob }), limit };
      const result = await answerOf(client.v1.inspect({ uuid }).grep.get({ query }));
      const lines = result.matches.map((match) => `${printable(match.path)}:${match.line}:${printable(match.text)}\n`);
      await io.stdout(options.json === true ? `${JSON.stringify(result)}\n` : lines.join(""));
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
