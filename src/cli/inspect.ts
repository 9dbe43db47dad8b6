import { rename, rm, stat } from "node:fs/promises";
import { basename, dirname, join } from "node:path";
import { ApiClient, CLIENT_OPTIONS } from "./client.ts";
import { type Command, command, expectPositionals } from "./command.ts";
import type { Io } from "./io.ts";

const DESCRIPTION = "IMAGE is a UUID or tag:NAME; PATH is absolute. No sandbox is started for it.";

export const inspectCommands: readonly Command[] = [
  command({
    name: "ls",
    summary: "list a directory of an image",
    synopsis: "IMAGE PATH [OPTIONS]",
    description: DESCRIPTION,
    examples: ["coppice ls tag:busybox /etc"],
    options: { json: { type: "boolean", doc: "print JSON" }, ...CLIENT_OPTIONS },
    async run({ options, positionals, io, environment }) {
      const [reference = "", path = ""] = expectPositionals(positionals, "IMAGE", "PATH");
      const client = new ApiClient(environment, options.url);
      const id = await client.imageId(reference);
      const query = { path, ...(options.json === true ? {} : { text: true }) };
      await passBody(
        await client.call("GET", `/inspect/${encodeURIComponent(id)}/list`, { query, deadline: false }),
        io,
      );
      return 0;
    },
  }),
  command({
    name: "cat",
    summary: "print a file of an image",
    synopsis: "IMAGE PATH",
    description: DESCRIPTION,
    options: CLIENT_OPTIONS,
    async run({ options, positionals, io, environment }) {
      const [reference = "", path = ""] = expectPositionals(positionals, "IMAGE", "PATH");
      await passBody(await download(new ApiClient(environment, options.url), reference, path), io);
      return 0;
    },
  }),
  command({
    name: "cp",
    summary: "copy a file out of an image",
    synopsis: "IMAGE PATH LOCAL",
    description: `${DESCRIPTION}\nLOCAL is a file name or a directory; it appears when all of it is there.`,
    options: CLIENT_OPTIONS,
    async run({ options, positionals, environment }) {
      const [reference = "", path = "", local = ""] = expectPositionals(positionals, "IMAGE", "PATH", "LOCAL");
      const response = await download(new ApiClient(environment, options.url), reference, path);
      const target = (await isDirectory(local)) ? join(local, basename(path)) : local;
      const temporary = join(dirname(target), `.${basename(target)}.${process.pid}`);
      await using _cleanup = { [Symbol.asyncDispose]: () => rm(temporary, { force: true }) };
      const file = Bun.file(temporary).writer();
      for await (const chunk of response.body ?? []) {
        file.write(chunk);
        await file.flush();
      }
      await file.end();
      await rename(temporary, target);
      return 0;
    },
  }),
];

async function download(client: ApiClient, reference: string, path: string): Promise<Response> {
  const id = await client.imageId(reference);
  return await client.call("GET", `/inspect/${encodeURIComponent(id)}/download`, { query: { path }, deadline: false });
}

async function passBody(response: Response, io: Io): Promise<void> {
  for await (const chunk of response.body ?? []) await io.stdout(chunk);
}

async function isDirectory(path: string): Promise<boolean> {
  const found = await stat(path).catch((error: NodeJS.ErrnoException) => {
    if (error.code === "ENOENT") return null;
    throw error;
  });
  return found?.isDirectory() ?? false;
}
