import { afterEach, beforeEach, describe, expect, test } from "bun:test";
import { lstatSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, readlinkSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { type CliOptions, type CliResult, cli, errorReply, ScriptedAppliance } from "../../support/cli/cli.ts";
import { pause, until } from "../../support/waiting.ts";

const IMAGE = "0197a1d0-5a5e-7000-8000-000000000001";
const MODIFIED = "2026-11-20T10:30:00.000Z";

let appliance: ScriptedAppliance;
let directory: string;

beforeEach(() => {
  appliance = new ScriptedAppliance();
  directory = mkdtempSync(join(tmpdir(), "coppice-cp-"));
});
afterEach(async () => {
  await appliance[Symbol.asyncDispose]();
  rmSync(directory, { recursive: true });
});

const coppice = (argv: readonly string[], options: CliOptions = {}): Promise<CliResult> =>
  cli(argv, { environment: appliance.environment, ...options });

type Item = Record<string, unknown>;
const item = (name: string, type: string, more: Item = {}): Item => ({
  ...{ name, type, size: 0, mode: "0644", uid: 7, gid: 7, modified_at: MODIFIED },
  ...{ is_regular: type === "file", is_dir: type === "directory", is_symlink: type === "symlink" },
  ...more,
});

/** An image with these directories; every other path is a file that contains its own path. */
function holds(directories: Readonly<Record<string, readonly Item[]>>): void {
  appliance.answer = ({ path }) => {
    const route = path.split("?")[0]?.split("/").at(-1);
    const encoded = /[?&]path=([^&]*)/.exec(path)?.[1] ?? "";
    const requestedPath = Buffer.from(encoded.replaceAll("%", ""), "hex").toString("latin1");
    const items = directories[requestedPath];
    if (route === "download") {
      if (items !== undefined) return errorReply(422, "invalid_path", "path is a directory, not a regular file");
      return new Response(Buffer.from(requestedPath, "latin1"));
    }
    if (items === undefined) return errorReply(422, "invalid_path", "not a directory");
    return Response.json({ path: requestedPath, items });
  };
}

describe("cp of a file", () => {
  test("cp puts the file in place as a whole, or not at all", async () => {
    appliance.answer = () => new Response("content");
    expect((await coppice(["cp", IMAGE, "/etc/hosts", directory])).code).toBe(0);
    expect(readFileSync(join(directory, "hosts"), "utf8")).toBe("content");
    appliance.answer = () =>
      new Response(
        new ReadableStream({
          start(controller) {
            controller.enqueue(Buffer.from("half"));
            const arrived = until("half of it has arrived", () => readdirSync(directory).length > 1);
            void arrived.then(() => appliance[Symbol.asyncDispose]());
          },
        }),
      );
    expect((await coppice(["cp", IMAGE, "/etc/hosts", join(directory, "new")])).code).not.toBe(0);
    expect(readdirSync(directory)).toEqual(["hosts"]);
  });

  test("- is standard output", async () => {
    appliance.answer = () => new Response("content");
    expect(await coppice(["cp", IMAGE, "/a", "-"])).toEqual({ code: 0, stdout: Buffer.from("content"), stderr: "" });
  });

  test("a directory is not replaced by a file", async () => {
    appliance.answer = () => new Response("content");
    mkdirSync(join(directory, "in/hosts"), { recursive: true });
    const { code, stderr } = await coppice(["cp", IMAGE, "/etc/hosts", join(directory, "in")]);
    expect([code, stderr]).toEqual([1, expect.stringContaining("in/hosts is a directory")]);
    expect(readdirSync(join(directory, "in"))).toEqual(["hosts"]);
  });

  test("Ctrl-C leaves nothing behind", async () => {
    const pressed = Promise.withResolvers<(signal: "SIGINT") => void>();
    appliance.answer = async () => {
      (await pressed.promise)("SIGINT");
      return new Response(new ReadableStream({ pull: () => new Promise<never>(() => undefined) }));
    };
    const argv = ["cp", IMAGE, "/a", join(directory, "a")];
    expect((await coppice(argv, { interrupts: pressed.resolve })).code).toBe(130);
    expect(readdirSync(directory)).toEqual([]);
  });
});

describe("cp of a directory", () => {
  test("copies the tree with permissions, times and links, but without owners, set-user-ID and set-group-ID bits", async () => {
    holds({
      "/srv/app": [
        item("run", "file", { mode: "4755" }),
        item("link", "symlink", { symlink_to: "../../etc/passwd", mode: "0777" }),
        item("private", "directory", { mode: "0500" }),
        item("pipe", "fifo"),
        item("\ufffd", "file", { name_base64: Buffer.from([0xff]).toString("base64") }),
      ],
      "/srv/app/private": [item("key", "file", { mode: "0400" })],
    });
    const target = join(directory, "copy");
    const { code, stdout, stderr } = await coppice(["cp", IMAGE, "/srv/app", target]);
    expect([code, stdout.length, stderr]).toEqual([0, 0, "coppice cp: devices, sockets and pipes were left out: 1\n"]);
    expect(readFileSync(join(target, "run"), "utf8")).toBe("/srv/app/run");
    expect(lstatSync(join(target, "run")).mode & 0o7777).toBe(0o755);
    expect(lstatSync(join(target, "run")).mtime.toISOString()).toBe(MODIFIED);
    expect(readlinkSync(join(target, "link"))).toBe("../../etc/passwd");
    expect(lstatSync(join(target, "private")).mode & 0o7777).toBe(0o500);
    expect(readFileSync(join(target, "private/key"), "utf8")).toBe("/srv/app/private/key");
    const names = readdirSync(Buffer.from(target), "buffer").map((name) => name.toString("latin1"));
    expect(names.sort()).toEqual(["link", "private", "run", "\xff"]);
  });

  test("copies into an existing directory under its own name, and never overwrites", async () => {
    holds({ "/srv": [item("a", "file")] });
    expect((await coppice(["cp", IMAGE, "/srv", directory])).code).toBe(0);
    expect(readdirSync(join(directory, "srv"))).toEqual(["a"]);
    const again = await coppice(["cp", IMAGE, "/srv", directory]);
    expect([again.code, again.stderr]).toEqual([1, expect.stringContaining("srv exists")]);
    expect(readdirSync(directory)).toEqual(["srv"]);
  });

  test.each(["../escape", "", ".", "..", "a/b", "a\0b"])(
    "a listing that names %j is refused as a whole",
    async (name) => {
      holds({ "/srv": [item("good", "file"), item(name, "file")] });
      const { code, stderr } = await coppice(["cp", IMAGE, "/srv", join(directory, "copy")]);
      expect([code, stderr]).toEqual([1, expect.stringContaining("an impossible name")]);
      expect(readdirSync(directory)).toEqual([]);
    },
  );

  test.each(["../escape", "", ".", "..", "a/b", "a\0b"])("and so is one that says %j in base64", async (name) => {
    const hidden = item("good", "file", { name_base64: Buffer.from(name).toString("base64") });
    holds({ "/srv": [hidden] });
    const { code, stderr } = await coppice(["cp", IMAGE, "/srv", join(directory, "copy")]);
    expect([code, stderr]).toEqual([1, expect.stringContaining("an impossible name")]);
    expect(readdirSync(directory)).toEqual([]);
  });

  test("copies names and link targets that are not text byte by byte", async () => {
    const target = Buffer.from([0x2f, 0xff, 0xfe]);
    const bytes = { name_base64: Buffer.from([0xfd]).toString("base64"), symlink_to_base64: target.toString("base64") };
    // The bytes take precedence over the text.
    holds({ "/srv": [item("..", "symlink", { symlink_to: "/\ufffd\ufffd", ...bytes })] });
    const copy = join(directory, "copy");
    expect((await coppice(["cp", IMAGE, "/srv", copy])).code).toBe(0);
    const link = Buffer.concat([Buffer.from(`${copy}/`), Buffer.from([0xfd])]);
    expect(readlinkSync(link, "buffer")).toEqual(target);
  });

  test("ends the other downloads after the first failure, before the copy is removed", async () => {
    const ended = Promise.withResolvers<void>();
    const begun = Promise.withResolvers<void>();
    holds({ "/srv": [item("endless", "file"), item("bad", "file")] });
    const answer = appliance.answer;
    const named = (name: string) => `path=${[...Buffer.from(name)].map((byte) => `%${byte.toString(16)}`).join("")}`;
    appliance.answer = async (request) => {
      if (request.path.endsWith(named("/srv/bad"))) {
        await begun.promise;
        return errorReply(404, "not_found", "no such file");
      }
      if (!request.path.endsWith(named("/srv/endless"))) return await answer(request);
      const body = new ReadableStream({
        async pull(controller) {
          controller.enqueue(Buffer.from("more"));
          begun.resolve();
          await pause("there is always more", 5);
        },
        cancel: () => ended.resolve(),
      });
      return new Response(body);
    };
    const { code, stderr } = await coppice(["cp", IMAGE, "/srv", join(directory, "copy")]);
    expect([code, stderr]).toEqual([1, expect.stringContaining("no such file")]);
    await ended.promise;
    expect(readdirSync(directory)).toEqual([]);
  });

  test("does not write through a link when its name is listed twice", async () => {
    const outside = join(directory, "outside");
    holds({ "/srv": [item("a", "symlink", { symlink_to: outside }), item("a", "file")] });
    expect((await coppice(["cp", IMAGE, "/srv", join(directory, "copy")])).code).toBe(1);
    expect(readdirSync(directory)).toEqual([]);
  });

  test("writes an archive to standard output, but not to a terminal", async () => {
    holds({ "/srv": [] });
    const answer = appliance.answer;
    appliance.answer = (request) => (request.path.includes("/archive?") ? new Response("tar") : answer(request));
    expect((await coppice(["cp", IMAGE, "/srv", "-"])).stdout.toString()).toBe("tar");
    expect((await coppice(["cp", IMAGE, "/srv", "-"], { terminal: true })).code).toBe(2);
  });
});
