import { open, rename, rm } from "node:fs/promises";
import { ReadableStream as WebStream } from "node:stream/web";
import { answerOf, type Client } from "../client/client.ts";
import { downloadImage, imageIdOf, uploadFile } from "../client/transfers.ts";
import type { ImportResult } from "../client/types.ts";
import { given } from "../domain/given.ts";
import { shownDuration, shownSize } from "../domain/text/shown.ts";
import { CLIENT_OPTIONS, openClient } from "./client.ts";
import {
  CliError,
  type Command,
  command,
  expectPositionals,
  JSON_OPTION,
  secondsOption,
  UsageError,
} from "./command.ts";
import type { Io } from "./io.ts";
import { listed, PAGING_OPTIONS } from "./paging.ts";
import { table } from "./table.ts";
import { interruptible, showProgress, successOf } from "./wait.ts";

export const imageCommands: readonly Command[] = [
  command({
    name: "image import",
    summary: "import an image from a registry",
    synopsis: "REFERENCE [OPTIONS]",
    description:
      "REFERENCE is REGISTRY/REPOSITORY:VERSION or REGISTRY/REPOSITORY@DIGEST. Prints the image's UUID.\n" +
      "Ctrl-C cancels the import.",
    examples: ["coppice image import registry.example.net/library/busybox:1.36 --tag busybox"],
    options: {
      tag: { type: "string", value: "NAME", doc: "tag the image" },
      timeout: { type: "string", value: "DURATION", doc: "time limit of the import, such as 90s or 30m" },
      username: {
        type: "string",
        value: "NAME",
        doc: "user at the registry; the password is read from standard input",
      },
      ...JSON_OPTION,
      ...CLIENT_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      const [registry = ""] = expectPositionals(positionals, "REFERENCE");
      const { tag, username } = options;
      const timeout = secondsOption("timeout", options.timeout);
      const client = openClient(environment, options.url);
      const request = {
        registry,
        ...given({ tag, timeout }),
        ...(username === undefined ? {} : { credentials: { username, password: await password(io) } }),
      };
      const { uuid } = await answerOf(client.v1.images.import.post(request));
      const operation = await successOf(client, { io, id: uuid, label: "importing" });
      const { image, size_bytes: sizeBytes } = operation.result as ImportResult;
      await io.stdout(options.json === true ? `${JSON.stringify(operation)}\n` : `${image}\n`);
      io.stderr(`imported ${registry}: ${shownSize(sizeBytes)} in ${shownDuration(operation.duration_ms ?? 0)}\n`);
      return 0;
    },
  }),
  command({
    name: "image load",
    summary: "import an image from a file",
    synopsis: "FILE [OPTIONS]",
    description:
      "FILE is an OCI layout archive or a docker-archive with one image, as skopeo copy and docker save write\n" +
      "them; - reads it from standard input. Prints the image's UUID. Ctrl-C cancels the import.",
    examples: ["coppice image load busybox.tar --tag busybox", "docker save busybox | coppice image load -"],
    options: {
      tag: { type: "string", value: "NAME", doc: "tag the image" },
      timeout: { type: "string", value: "DURATION", doc: "time limit of the import, such as 90s or 30m" },
      ...JSON_OPTION,
      ...CLIENT_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      const [path = ""] = expectPositionals(positionals, "FILE");
      const { tag } = options;
      const timeout = secondsOption("timeout", options.timeout);
      const client = openClient(environment, options.url);
      const body = await archiveBody(path, io);
      const file = await uploadArchive(client, body, io);
      const { uuid } = await answerOf(client.v1.images.load.post({ file, ...given({ tag, timeout }) }));
      const operation = await successOf(client, { io, id: uuid, label: "importing" });
      const { image, size_bytes: sizeBytes } = operation.result as ImportResult;
      await io.stdout(options.json === true ? `${JSON.stringify(operation)}\n` : `${image}\n`);
      io.stderr(
        `loaded ${path === "-" ? "standard input" : path}: ${shownSize(sizeBytes)} in ${shownDuration(operation.duration_ms ?? 0)}\n`,
      );
      return 0;
    },
  }),
  command({
    name: "image save",
    summary: "write an image to a file",
    synopsis: "IMAGE -o FILE",
    description:
      "IMAGE is a UUID or tag:NAME. The file is an OCI layout archive with one layer for each layer of the\n" +
      "image. coppice image load, skopeo (oci-archive:FILE) and others read it. Without -o the archive\n" +
      "goes to standard output.",
    examples: ["coppice image save tag:app -o app.tar", "skopeo copy oci-archive:app.tar docker://registry.lan/app:1"],
    options: {
      output: { type: "string", short: "o", value: "FILE", doc: "output file; replaces an existing one" },
      ...CLIENT_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      const [reference = ""] = expectPositionals(positionals, "IMAGE");
      const { output } = options;
      if (output === undefined && io.stdoutIsTerminal)
        throw new UsageError("an archive is not for a terminal: --output");
      const client = openClient(environment, options.url);
      const id = await imageIdOf(client, reference);
      await interruptible(io, async (signal) => {
        const response = await downloadImage(client, id, signal);
        if (output === undefined) for await (const chunk of response.body ?? []) await io.stdout(chunk);
        else await writeWhole(output, response.body ?? []);
      });
      return 0;
    },
  }),
  command({
    name: "image ls",
    summary: "list images, newest first",
    synopsis: "[OPTIONS]",
    options: {
      prefix: { type: "string", value: "TEXT", doc: "only images whose tag begins with this" },
      tagged: { type: "boolean", doc: "only images that have a tag" },
      untagged: { type: "boolean", doc: "only images without a tag" },
      ...PAGING_OPTIONS,
      ...JSON_OPTION,
      ...CLIENT_OPTIONS,
    },
    async run({ options, positionals, io, environment }) {
      expectPositionals(positionals);
      const { tagged = false, untagged = false } = options;
      if (tagged && untagged) throw new UsageError("--tagged and --untagged exclude each other");
      const client = openClient(environment, options.url);
      const filters = given({ tag: options.prefix, tagged: tagged ? true : untagged ? false : undefined });
      const images = await listed({
        read: (page) => answerOf(client.v1.images.get({ query: { ...filters, ...page } })),
        options,
        io,
        keyOf: (image) => image.uuid,
      });
      const rows = images.map((image) => [image.uuid, image.created_at, image.tag ?? "-"]);
      await io.stdout(
        options.json === true ? `${JSON.stringify(images)}\n` : table(["UUID", "CREATED", "TAG"], rows, io.columns),
      );
      return 0;
    },
  }),
  command({
    name: "image tag",
    summary: "set the tag of an image, or move a tag to it",
    synopsis: "IMAGE NAME",
    description: "IMAGE is a UUID or tag:NAME. To roll back, move the tag to an older image.",
    examples: ["coppice image tag 0197a1d0-5a5e-7000-8000-3c6e0b8a9c15 busybox"],
    options: { ...JSON_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const [reference = "", tag = ""] = expectPositionals(positionals, "IMAGE", "NAME");
      const client = openClient(environment, options.url);
      const uuid = encodeURIComponent(await imageIdOf(client, reference));
      const image = await answerOf(client.v1.images({ uuid }).tag.patch({ tag }));
      if (options.json === true) await io.stdout(`${JSON.stringify(image)}\n`);
      return 0;
    },
  }),
  command({
    name: "image untag",
    summary: "remove the tag of an image",
    synopsis: "IMAGE",
    description: "IMAGE is a UUID or tag:NAME. The image stays.",
    options: { ...JSON_OPTION, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const [reference = ""] = expectPositionals(positionals, "IMAGE");
      const client = openClient(environment, options.url);
      const uuid = encodeURIComponent(await imageIdOf(client, reference));
      const image = await answerOf(client.v1.images({ uuid }).tag.delete());
      if (options.json === true) await io.stdout(`${JSON.stringify(image)}\n`);
      return 0;
    },
  }),
];

/** Reads the password from standard input: every user can see the arguments of a process. */
async function password(io: Io): Promise<string> {
  const chunks: Uint8Array[] = [];
  for await (const chunk of io.stdin()) chunks.push(chunk);
  return Buffer.concat(chunks)
    .toString("utf8")
    .replace(/\r?\n$/, "");
}

async function uploadArchive(client: Client, body: Blob | ReadableStream<Uint8Array>, io: Io): Promise<string> {
  using _progress = showProgress(io, "uploading");
  return await uploadFile(client, body);
}

/** Opens the archive. Standard input is streamed, so that an archive of any size fits. */
async function archiveBody(path: string, io: Io): Promise<Blob | ReadableStream<Uint8Array>> {
  if (path === "-") return WebStream.from(io.stdin());
  const file = Bun.file(path);
  if (!(await file.exists())) throw new CliError(`there is no file ${path}`);
  return file;
}

/** Writes a file that gets its name when it is complete. */
async function writeWhole(path: string, chunks: AsyncIterable<Uint8Array> | Iterable<Uint8Array>): Promise<void> {
  const temporary = `${path}.partial`;
  await using undo = new AsyncDisposableStack();
  undo.defer(() => rm(temporary, { force: true }));
  {
    await using file = await open(temporary, "w", 0o600).catch((error: NodeJS.ErrnoException) => {
      throw new CliError(`${path} cannot be written: ${error.code}`, undefined, { cause: error });
    });
    for await (const chunk of chunks) await file.writeFile(chunk);
    await file.sync();
  }
  await rename(temporary, path);
}
