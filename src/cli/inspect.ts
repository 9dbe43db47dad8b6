import type { Client } from "../client/client.ts";
import { ResponseError } from "../client/errors.ts";
import { downloadArchive, downloadFile, downloadListing, type Inspected, imageIdOf } from "../client/transfers.ts";
import { CLIENT_OPTIONS, openClient } from "./client.ts";
import { type Command, command, expectPositionals, JSON_OPTION, UsageError } from "./command.ts";
import { copyOut } from "./copy.ts";
import type { Io } from "./io.ts";
import { interruptible } from "./wait.ts";

const DESCRIPTION = "IMAGE is a UUID or tag:NAME; PATH is absolute. The command starts no sandbox.";

export const inspectCommands: readonly Command[] = [
  command({
    name: "ls",
    summary: "list a directory of an image",
    synopsis: "IMAGE [PATH] [OPTIONS]",
    description: `${DESCRIPTION}\nThe default of PATH is /.`,
    examples: ["coppice ls tag:busybox /etc"],
    options: { ...JSON_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const names = positionals.length > 1 ? ["IMAGE", "PATH"] : ["IMAGE"];
      const [reference = "", path = "/"] = expectPositionals(positionals, ...names);
      const client = openClient(environment, options.url);
      const image = await imageIdOf(client, reference);
      await passBody(await downloadListing(client, { image, path, isText: options.json !== true }), io);
      if (options.json === true) await io.stdout("\n");
      return 0;
    },
  }),
  command({
    name: "cat",
    summary: "print a file of an image",
    synopsis: "IMAGE PATH",
    description: DESCRIPTION,
    examples: ["coppice cat tag:busybox /etc/passwd"],
    options: CLIENT_OPTIONS,
    async run({ options, positionals, io, environment }) {
      const [reference = "", path = ""] = expectPositionals(positionals, "IMAGE", "PATH");
      const client = openClient(environment, options.url);
      const image = await imageIdOf(client, reference);
      await interruptible(io, async (signal) => {
        await passBody(await downloadFile(client, { image, path, signal }), io);
      });
      return 0;
    },
  }),
  command({
    name: "cp",
    summary: "copy a file or a directory out of an image",
    synopsis: "IMAGE PATH LOCAL",
    description:
      `${DESCRIPTION}\n` +
      "LOCAL is the name of the copy, or a directory for it, or - for standard output, which gets a directory\n" +
      "as a tar archive. The copy appears when it is complete. It keeps permissions of files in directories,\n" +
      "times and links. It drops owners, devices, fifos and sockets.",
    examples: ["coppice cp tag:app /srv/app/report.txt .", "coppice cp tag:app /srv/app app-copy"],
    options: CLIENT_OPTIONS,
    async run({ options, positionals, io, environment }) {
      const [reference = "", path = "", local = ""] = expectPositionals(positionals, "IMAGE", "PATH", "LOCAL");
      const client = openClient(environment, options.url);
      const image = await imageIdOf(client, reference);
      await interruptible(io, async (signal) => {
        if (local === "-") return await copyToStdout(client, { image, path, signal }, io);
        const { specials } = await copyOut({ client, image, path, local, signal });
        if (specials > 0) io.stderr(`coppice cp: devices, sockets and pipes were left out: ${specials}\n`);
      });
      return 0;
    },
  }),
];

async function copyToStdout(client: Client, inspected: Inspected, io: Io): Promise<void> {
  try {
    return await passBody(await downloadFile(client, inspected), io);
  } catch (error) {
    // The path may be a directory; the request for the archive fails if it is not.
    if (!(error instanceof ResponseError && error.code === "invalid_path")) throw error;
  }
  if (io.stdoutIsTerminal) throw new UsageError("an archive is not for a terminal: redirect it");
  await passBody(await downloadArchive(client, { ...inspected, encoding: "identity" }), io);
}

async function passBody(response: Response, io: Io): Promise<void> {
  for await (const chunk of response.body ?? []) await io.stdout(chunk);
}
