import { ReadableStream as WebStream } from "node:stream/web";
import type { Client } from "../../client/client.ts";
import { ResponseError } from "../../client/errors.ts";
import { type FileAt, listFiles, makeDirectory, readFile, removeFile, writeFile } from "../../client/guest-files.ts";
import {
  downloadArchive,
  downloadFile,
  downloadListing,
  type Inspected,
  imageIdOf,
  listDirectory,
} from "../../client/transfers.ts";
import type { GuestEntry } from "../../client/types.ts";
import { parseUuid } from "../../domain/ids.ts";
import { CLIENT_OPTIONS, openClient } from "../client.ts";
import { CliError, type Command, command, expectPositionals, JSON_OPTION, UsageError } from "../command.ts";
import type { Io } from "../io.ts";
import { inPlace } from "../place.ts";
import { interruptible } from "../wait.ts";
import { copyIn } from "./copy-in.ts";
import { type CopySource, copyOut } from "./copy-out.ts";
import { entryLine } from "./entry-line.ts";
import { expectPlacePath, type PlacePath, placePathOf, placeSource } from "./place-path.ts";

const DESCRIPTION =
  "IMAGE is a UUID or tag:NAME, and PATH is absolute; reading an image starts no sandbox. NAME is a sandbox,\n" +
  "and ID a running instance or a sandbox.";
const USER_OPTION = {
  user: {
    type: "string",
    short: "u",
    value: "USER[:GROUP]",
    doc: "use the files of a sandbox in the name of this user",
  },
} as const;

export const fileCommands: readonly Command[] = [
  command({
    name: "ls",
    summary: "list a directory of an image or a sandbox",
    synopsis: "IMAGE [PATH] [OPTIONS] | NAME:[PATH] | ID:[PATH]",
    description: `${DESCRIPTION}\nThe default of PATH is /.`,
    examples: ["coppice ls tag:busybox /etc", "coppice ls dev:/etc"],
    options: { ...JSON_OPTION, ...USER_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const client = openClient(environment, options.url);
      const at = positionals.length === 1 ? placePathOf(positionals[0] ?? "") : null;
      if (at !== null) return await listPlace(client, at, { ...options, io });
      const names = positionals.length > 1 ? ["IMAGE", "PATH"] : ["IMAGE"];
      const [reference = "", path = "/"] = expectPositionals(positionals, ...names);
      const image = await imageAt(client, reference, path);
      await passBody(await downloadListing(client, { image, path, isText: options.json !== true }), io);
      if (options.json === true) await io.stdout("\n");
      return 0;
    },
  }),
  command({
    name: "cat",
    summary: "print a file of an image or a sandbox",
    synopsis: "IMAGE PATH | NAME:PATH | ID:PATH",
    description: DESCRIPTION,
    examples: ["coppice cat tag:busybox /etc/passwd", "coppice cat dev:/etc/passwd"],
    options: { ...USER_OPTION, ...CLIENT_OPTIONS },
    async run({ options: { user, url }, positionals, io, environment }) {
      const client = openClient(environment, url);
      const at = positionals.length === 1 ? placePathOf(positionals[0] ?? "") : null;
      if (at !== null) {
        await interruptible(io, async (signal) => {
          const read = () =>
            inPlace(client, at.place, (place) => readFile(client, { place, path: at.path, user, signal }));
          await passBody(await read(), io);
        });
        return 0;
      }
      const [reference = "", path = ""] = expectPositionals(positionals, "IMAGE", "PATH");
      const image = await imageAt(client, reference, path);
      await interruptible(io, async (signal) => {
        await passBody(await downloadFile(client, { image, path, signal }), io);
      });
      return 0;
    },
  }),
  command({
    name: "cp",
    summary: "copy a file or a directory out of an image or a sandbox, or into a sandbox",
    synopsis: "IMAGE PATH LOCAL | NAME:PATH LOCAL | LOCAL NAME:PATH",
    description:
      `${DESCRIPTION}\n` +
      "LOCAL is the name of the copy, or a directory for it, or - for standard output, which gets a directory\n" +
      "of an image as a tar archive. A copy out appears when it is complete. It keeps permissions of files in\n" +
      "directories, times and links. It drops owners, devices, fifos and sockets.\n" +
      "A copy in is written in place, or into PATH if that is a directory; - is standard input. It keeps\n" +
      "permissions, and drops links as well. A local name with a colon needs a slash before it: ./a:b.",
    examples: [
      "coppice cp tag:app /srv/app/report.txt .",
      "coppice cp tag:app /srv/app app-copy",
      "coppice cp src dev:/app",
      "coppice cp dev:/app/report.txt .",
    ],
    options: { ...USER_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const client = openClient(environment, options.url);
      const [from, to] = positionals.length === 2 ? positionals.map(placePathOf) : [null, null];
      if (from != null && to != null) throw new UsageError("one of both has to be a local file");
      const [first = "", second = ""] = positionals;
      if (from != null) return await copyFromPlace(client, from, second, { ...options, io });
      if (to != null) return await copyToPlace(client, first, to, { ...options, io });
      const [reference = "", path = "", local = ""] = expectPositionals(positionals, "IMAGE", "PATH", "LOCAL");
      const image = await imageAt(client, reference, path);
      await interruptible(io, async (signal) => {
        if (local === "-") return await copyToStdout(client, { image, path, signal }, io);
        await copyLocally({ source: imageSource(client, image), path, local, signal }, io);
      });
      return 0;
    },
  }),
  command({
    name: "rm",
    summary: "remove files of a sandbox",
    synopsis: "[OPTIONS] NAME:PATH...",
    description: "NAME is a sandbox, or the ID of a running instance or a sandbox.",
    examples: ["coppice rm dev:/tmp/a dev:/tmp/b", "coppice rm -r dev:/app/node_modules"],
    options: {
      recursive: { type: "boolean", short: "r", doc: "remove directories with all that is in them" },
      ...USER_OPTION,
      ...CLIENT_OPTIONS,
    },
    async run({ options: { recursive = false, user, url }, positionals, io, environment }) {
      const paths = someOf(positionals).map(expectPlacePath);
      const client = openClient(environment, url);
      await interruptible(io, async (signal) => {
        for (const { place: named, path } of paths) {
          await inPlace(client, named, (place) => removeFile(client, { place, path, user, signal }, { recursive }));
        }
      });
      return 0;
    },
  }),
  command({
    name: "mkdir",
    summary: "make directories in a sandbox",
    synopsis: "[OPTIONS] NAME:PATH...",
    description: "NAME is a sandbox, or the ID of a running instance or a sandbox.",
    examples: ["coppice mkdir -p dev:/app/data"],
    options: {
      parents: { type: "boolean", short: "p", doc: "make the directories above as well; one that exists is no error" },
      mode: { type: "string", short: "m", value: "MODE", doc: "octal permissions, such as 0700" },
      ...USER_OPTION,
      ...CLIENT_OPTIONS,
    },
    async run({ options: { parents = false, mode, user, url }, positionals, environment }) {
      const paths = someOf(positionals).map(expectPlacePath);
      const client = openClient(environment, url);
      for (const { place: named, path } of paths) {
        const make = (file: FileAt) => makeDirectory(client, file, { parents, mode });
        const { created } = await inPlace(client, named, (place) => make({ place, path, user }));
        if (!created && !parents) throw new CliError(`${path} exists`);
      }
      return 0;
    },
  }),
];

/** The uuid of an image. @throws UsageError for a text that names none, and may be a sandbox */
async function imageAt(client: Client, reference: string, path: string): Promise<string> {
  if (reference.startsWith("tag:") || parseUuid(reference) !== null) return await imageIdOf(client, reference);
  throw new UsageError(
    `${JSON.stringify(reference)} names no image: write tag:${reference}, or ${reference}:${path} for files of a sandbox`,
  );
}

function someOf(positionals: readonly string[]): readonly string[] {
  if (positionals.length === 0) throw new UsageError("NAME:PATH is missing");
  return positionals;
}

interface PlaceOptions {
  readonly user?: string | undefined;
  readonly json?: boolean | undefined;
  readonly io: Io;
}

async function listPlace(client: Client, at: PlacePath, { user, json, io }: PlaceOptions): Promise<number> {
  await interruptible(io, async (signal) => {
    const { first, rest } = await inPlace(client, at.place, async (place) => {
      const rest = listFiles(client, { place, path: at.path, user, signal });
      return { first: await rest.next(), rest };
    });
    const print = async (entry: GuestEntry) =>
      await io.stdout(json === true ? `${JSON.stringify(entry)}\n` : entryLine(entry));
    // The first entry is that of the path itself.
    if (first.done !== true && first.value.type !== "directory") await print(first.value);
    for await (const entry of rest) await print(entry);
  });
  return 0;
}

async function copyFromPlace(
  client: Client,
  at: PlacePath,
  local: string,
  { user, io }: PlaceOptions,
): Promise<number> {
  await interruptible(io, async (signal) => {
    await inPlace(client, at.place, async (place) => {
      const source = placeSource(client, { place, user });
      if (local === "-") return await passBody(await source.read(at.path, signal), io);
      await copyLocally({ source, path: at.path, local, signal }, io);
    });
  });
  return 0;
}

async function copyToPlace(client: Client, local: string, at: PlacePath, { user, io }: PlaceOptions): Promise<number> {
  await interruptible(io, async (signal) => {
    await inPlace(client, at.place, async (place) => {
      if (local === "-") {
        const body = WebStream.from(io.stdin(signal)) as unknown as ReadableStream<Uint8Array>;
        await writeFile(client, { place, path: at.path, user, signal }, body);
        return;
      }
      const { leftOut } = await copyIn({ client, place, user, local, path: at.path, signal });
      if (leftOut > 0) io.stderr(`coppice cp: links, devices, sockets and pipes were left out: ${leftOut}\n`);
    });
  });
  return 0;
}

function imageSource(client: Client, image: string): CopySource {
  return {
    read: (path, signal) => downloadFile(client, { image, path, signal }),
    list: (path, signal) => listDirectory(client, { image, path, signal }),
  };
}

async function copyLocally(options: Parameters<typeof copyOut>[0], io: Io): Promise<void> {
  const { specials } = await copyOut(options);
  if (specials > 0) io.stderr(`coppice cp: devices, sockets and pipes were left out: ${specials}\n`);
}

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
