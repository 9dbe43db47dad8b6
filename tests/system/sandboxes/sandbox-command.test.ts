/** The command line for sandboxes, with real machines. */

import { afterAll, beforeAll, expect, setDefaultTimeout, test } from "bun:test";
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { CliProcess } from "../../support/cli/cli-process.ts";
import { freePort } from "../../support/free-port.ts";

setDefaultTimeout(180_000);

let box: BusyboxAppliance;
beforeAll(async () => {
  const tables = `[ingress]\nlisten = "127.0.0.1:${await freePort()}"`;
  box = await BusyboxAppliance.start({ poolSize: 1, tag: "busybox", tables });
});
afterAll(() => box[Symbol.asyncDispose]());

/** Runs coppice, and returns its standard output without the last newline. @throws Error for another exit code than `code` */
async function coppice(argv: readonly string[], code = 0): Promise<string> {
  const ended = await box.appliance.command(argv);
  if (ended.code !== code) throw new Error(`coppice ${argv.join(" ")}: ${ended.code} ${ended.stderr}${ended.stdout}`);
  return ended.stdout.trimEnd();
}
const inDev = (command: string) => coppice(["exec", "--shell", "dev", "--", command]);

test("a sandbox is opened, used, paused, rolled back, forked and ended by its name", async () => {
  expect(await coppice(["up", "tag:busybox", "--name", "dev", "--timeout", "1h", "--env", "A=b"])).toStartWith(
    "dev  running",
  );
  expect(await inDev("echo $A; echo one > /f")).toBe("b");
  const image = await coppice(["checkpoint", "dev"]);
  await inDev("echo two > /f");
  expect(await coppice(["pause", "dev"])).toBe("dev  paused");
  // A command resumes it.
  expect(await inDev("cat /f")).toBe("two");
  expect(await coppice(["rollback", "dev", "HEAD~1"])).toBe("dev  running");
  expect(await inDev("cat /f; echo $A")).toBe("one\nb");
  expect(await coppice(["sandbox", "states", "dev"])).toContain(image);
  expect(await coppice(["fork", "dev", "-n", "2", "--name", "try"])).toBe("try-1  running\ntry-2  running");
  expect(await coppice(["exec", "try-2", "--", "cat", "/f"])).toBe("one");
  expect((await coppice(["sandbox", "ls"])).split("\n")).toHaveLength(4);
  expect(await coppice(["fork", "dev", "--memory", "--name", "live"])).toBe("live-1  running");
  expect(await coppice(["exec", "live-1", "--", "cat", "/f", "/run/coppice/fork"])).toBe("one\ngeneration=1\nindex=1");
  await coppice(["fork", "dev", "--signal", "USR1"], 2);
  for (const name of ["try-1", "try-2", "live-1"]) expect(await coppice(["down", name])).toBe(`${name}  ended`);
  expect(await coppice(["logs", "dev"])).toContain("two");
  expect(await coppice(["down", "dev", "--keep", "--tag", "dev-last"])).toBe("dev  ended");
  expect(await coppice(["cat", "tag:dev-last", "/f"])).toBe("one");
  await coppice(["exec", "dev", "--", "true"], 125);
});

test("a project with a devcontainer.json has its files, variables, user and commands in its sandbox", async () => {
  const directory = mkdtempSync(join(tmpdir(), "my-project-"));
  using _directory = { [Symbol.dispose]: () => rmSync(directory, { recursive: true }) };
  mkdirSync(join(directory, ".devcontainer"));
  writeFileSync(join(directory, "setup.sh"), "#!/bin/sh\necho set up by $(id -u) in $PWD > done\n", { mode: 0o755 });
  const config = join(directory, ".devcontainer/devcontainer.json");
  writeFileSync(
    config,
    `{ // as many projects have it
      "image": "${box.reference}",
      "workspaceFolder": "/workspaces/app",
      "containerEnv": { "FROM": "\${containerWorkspaceFolder}" },
      "remoteUser": "1000:1000",
      "features": { "ghcr.io/devcontainers/features/git:1": {} },
      "postCreateCommand": { "script": "./setup.sh", "words": ["sh", "-c", "echo $FROM > words"] },
      "postStartCommand": "echo started >> starts",
      "postAttachCommand": { "server": "httpd -f -p 8000 -h /workspaces/app" }
    }`,
  );
  const { code, stdout, stderr } = await box.appliance.command(["up", "--config", config, "--name", "app"]);
  expect([code, stderr.includes("features are not installed")]).toEqual([0, true]);
  expect(stdout).toStartWith("app  running\n");
  const inApp = (command: string) => coppice(["exec", "--shell", "app", "--", command]);
  expect(await inApp("pwd; cat done words starts; stat -c %u:%g . setup.sh")).toBe(
    "/workspaces/app\nset up by 1000 in /workspaces/app\n/workspaces/app\nstarted\n1000:1000\n1000:1000",
  );
  expect(await inApp("wget -q -O - http://127.0.0.1:8000/words")).toBe("/workspaces/app");
  await coppice(["pause", "app"]);
  expect(await coppice(["up", "--config", config, "--name", "app"])).toStartWith("app  running");
  expect(await inApp("cat starts; wget -q -O - http://127.0.0.1:8000/words")).toBe("started\nstarted\n/workspaces/app");
  using forward = new CliProcess(box.appliance, ["forward", "app", "0:8000"]);
  const [, port] = await forward.says(/127\.0\.0\.1:(\d+) -> 8000/);
  expect(await (await fetch(`http://127.0.0.1:${port}/words`)).text()).toBe("/workspaces/app\n");
  const link = new URL(await coppice(["url", "app", "8000"]));
  // Names below localhost are this machine for browsers.
  const visit = async (path: string, cookie = "") => {
    const headers = { host: link.host, cookie };
    return await fetch(`http://127.0.0.1:${link.port}${path}`, { headers, redirect: "manual" });
  };
  const opened = await visit(link.pathname + link.search);
  const [cookie = ""] = (opened.headers.get("set-cookie") ?? "").split(";");
  expect(await (await visit("/words", cookie)).text()).toBe("/workspaces/app\n");
  expect((await visit("/words")).ok).toBe(false);
  await coppice(["down", "app"]);
  await forward.says("sandbox app has ended");
});
