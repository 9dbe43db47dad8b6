import { afterAll, beforeAll, describe, expect, setDefaultTimeout, test } from "bun:test";
import { readFile } from "node:fs/promises";
import type { Appliance } from "../../support/appliance/appliance.ts";
import { BusyboxAppliance } from "../../support/appliance/busybox-appliance.ts";
import { CliProcess } from "../../support/cli/cli-process.ts";
import { CliTerminal } from "../../support/cli/cli-terminal.ts";
import { until } from "../../support/waiting.ts";

setDefaultTimeout(120_000);

/** The prompt of busybox's shell, which then requests the position of the cursor. */
const PROMPT = new RegExp(`# (${RegExp.escape("\x1b[6n")})?$`);

let busybox: BusyboxAppliance;
let appliance: Appliance;

beforeAll(async () => {
  busybox = await BusyboxAppliance.start({ tag: "busybox" });
  ({ appliance } = busybox);
});

afterAll(async () => {
  await busybox[Symbol.asyncDispose]();
});

interface Listed {
  readonly id: string;
  readonly status: string;
  readonly result?: { readonly exit_code: number };
}

async function newestInstance(): Promise<Listed> {
  const [newest] = (await (await appliance.fetch("/operations?kind=instance&limit=1")).json()) as Listed[];
  if (newest === undefined) throw new Error("there is no instance");
  return newest;
}

describe("shell", () => {
  test("is a terminal like any other: size, editor, job control, Ctrl-C; and keeps the files", async () => {
    using shell = new CliTerminal(appliance, ["shell", "tag:busybox", "--tag", "kept"]);
    await shell.shows(PROMPT);
    shell.type("stty size; echo TERM=$TERM; test -t 0 && tty\r");
    await shell.shows("\n24 80\r\n");
    await shell.shows("TERM=xterm\r\n/dev/pts/");
    await shell.shows(PROMPT);

    shell.resize(100, 30);
    // The size is sent separately, and its arrival is not reported.
    shell.type("until [ \"$(stty size)\" = '30 100' ]; do sleep 0.1; done; echo big enough\r");
    await shell.shows("\nbig enough\r\n");
    await shell.shows(PROMPT);

    shell.type("vi /root/file\r");
    await shell.shows("- /root/file");
    shell.type("ihello from vi\x1b");
    // Keys right after an Escape would be read as one key with it.
    await shell.shows(/- \/root\/file \[modified\]/i);
    shell.type(":wq\r");
    await shell.shows(PROMPT);
    shell.type("cat /root/file\r");
    await shell.shows("\nhello from vi\r\n");
    await shell.shows(PROMPT);

    shell.type("sh -c 'echo one; sleep 100'\r");
    await shell.shows("\none\r\n");
    shell.type("\x1a");
    await shell.shows("Stopped");
    await shell.shows(PROMPT);
    shell.type("kill -KILL %1; wait; echo job is gone\r");
    await shell.shows("\njob is gone\r\n");
    await shell.shows(PROMPT);

    shell.type("sh -c 'echo two; sleep 100'\r");
    await shell.shows("\ntwo\r\n");
    shell.type("\x03");
    await shell.shows(PROMPT);
    shell.type("exit 4\r");
    const [, image] = await shell.shows(/the files are image ([0-9a-f-]{36}), tag:kept\r\n/);
    expect(await shell.ended()).toBe(4);
    expect((await appliance.command(["cat", "tag:kept", "/root/file"])).stdout).toBe("hello from vi\n");
    expect(JSON.parse((await appliance.command(["image", "show", "tag:kept", "--json"])).stdout).uuid).toBe(image);
  });

  test("is detached by Ctrl-P Ctrl-Q, and continues in a new terminal", async () => {
    using shell = new CliTerminal(appliance, ["shell", "tag:busybox", "--disposable"]);
    await shell.shows(PROMPT);
    shell.type("N=remembered\r");
    await shell.shows(PROMPT);
    shell.type("\x10\x11");
    const [, id = ""] = await shell.shows(/left ([0-9a-f-]{36})/);
    expect(await shell.ended()).toBe(0);

    using again = new CliTerminal(appliance, ["attach", id]);
    // This is from the log, and the rest is live.
    await again.shows("N=remembered");
    await again.shows(PROMPT);
    again.type("echo $N\r");
    await again.shows("\nremembered\r\n");
    again.type("exit 5\r");
    expect(await again.ended()).toBe(5);
    expect((await appliance.finished(id)).result).toMatchObject({ exit_code: 5 });
  });

  test("that loses its terminal leaves nothing behind", async () => {
    const shell = new CliTerminal(appliance, ["shell", "tag:busybox", "--disposable"]);
    await shell.shows(PROMPT);
    const { id } = await newestInstance();
    shell.close();
    expect(await appliance.finished(id)).toMatchObject({ status: "SUCCESS", result: { exit_code: 129 } });
    await shell.ended();
  });

  test("warns on the terminal before its time is over, and can be extended", async () => {
    using shell = new CliTerminal(appliance, ["shell", "tag:busybox", "--disposable", "--timeout", "62"]);
    const [, id = ""] = await shell.shows(
      /this session ends in 1 min; more time: coppice op extend ([0-9a-f-]{36}) 30m/,
    );
    const extended = await appliance.command(["op", "extend", id, "30m", "--json"]);
    expect([extended.code, JSON.parse(extended.stdout)]).toEqual([0, { uuid: id, timeout: expect.any(Number) }]);
    const over = await appliance.command(["op", "extend", id, "100d"]);
    expect([over.code, over.stderr]).toEqual([2, expect.stringContaining("the appliance allows 3600s in all")]);
    shell.type("exit\r");
    expect(await shell.ended()).toBe(0);
  });

  test("that ignores the loss of its terminal is killed, and its files are kept", async () => {
    const shell = new CliTerminal(appliance, ["shell", "tag:busybox"]);
    await shell.shows(PROMPT);
    shell.type("trap '' HUP; echo work > /root/work; echo stays\r");
    await shell.shows("\nstays\r\n");
    const { id } = await newestInstance();
    shell.close();
    const { status, result } = await appliance.finished(id);
    expect([status, result]).toEqual(["SUCCESS", expect.objectContaining({ image: expect.any(String) })]);
    const image = (result as unknown as { image: string }).image;
    expect((await appliance.command(["cat", image, "/root/work"])).stdout).toBe("work\n");
    await shell.ended();
  });

  test("restores the terminal, also when it is ended from outside", async () => {
    for (const end of ["exit\r", null]) {
      const script = `stty -a > /dev/null; before=$(stty -g); "$@"; [ "$before" = "$(stty -g)" ] && echo "as it was"`;
      using shell = new CliTerminal(appliance, ["shell", "tag:busybox", "--disposable"], (words) => [
        ...["sh", "-c", script, "sh"],
        ...words,
      ]);
      await shell.shows(PROMPT);
      if (end !== null) shell.type(end);
      else await appliance.fetch(`/operations/${(await newestInstance()).id}`, { method: "DELETE" });
      await shell.shows("as it was");
    }
  });
});

test("run -t without -i shows a terminal; Ctrl-C goes to the command, and twice cancels", async () => {
  const trap = "trap 'echo not yet' INT; [ -t 1 ] && echo ready; while :; do sleep 0.1; done";
  using run = new CliTerminal(appliance, [
    "run",
    "--image",
    "tag:busybox",
    "--disposable",
    "-t",
    "--",
    "sh",
    "-c",
    trap,
  ]);
  await run.shows(/ready\r+\n/);
  run.type("\x03");
  await run.shows(/not yet\r+\n/);
  run.type("\x03");
  await run.shows("was cancelled");
  expect(await run.ended()).toBe(130);
  expect((await newestInstance()).status).toBe("CANCELLED");
});

describe("during a run", () => {
  test("exec passes streams and the exit code on, and has the command's view", async () => {
    const id = await appliance.spawn({
      image: "tag:busybox",
      command: "echo shared > /tmp/file; exec sleep 300",
      shell: true,
      disposable: true,
    });
    await until("it runs", async () => (await appliance.fetch(`/instances/${id}/processes/1`)).ok);
    using exec = new CliProcess(appliance, [
      "exec",
      "--uid",
      "7",
      id,
      "--",
      "sh",
      "-c",
      "id -u; cat /tmp/file -; exit 6",
    ]);
    exec.write("typed\n");
    exec.closeInput();
    expect(await exec.ended()).toBe(6);
    expect(exec.stdout).toBe("7\nshared\ntyped\n");

    using shell = new CliTerminal(appliance, ["exec", "-it", id, "sh"]);
    await shell.shows(PROMPT);
    shell.type("ps\r");
    await shell.shows("sleep 300");
    shell.type("exit 2\r");
    expect(await shell.ended()).toBe(2);

    const none = await appliance.command(["exec", id, "--", "/no/such/program"]);
    expect([none.code, none.stderr]).toEqual([expect.any(Number), expect.stringContaining("/no/such/program")]);
    await appliance.fetch(`/operations/${id}`, { method: "DELETE" });
    await appliance.finished(id);
    const late = await appliance.command(["exec", id, "--", "true"]);
    expect([late.code, late.stderr]).toEqual([125, expect.stringContaining("not running")]);
  });

  test("exec and checkpoint wait for a command that is about to start", async () => {
    for (const words of [
      ["exec", "ID", "--", "true"],
      ["checkpoint", "ID"],
    ]) {
      const { stdout } = await appliance.command(["run", "-d", "--image", "tag:busybox", "--", "sleep", "300"]);
      const id = stdout.trim();
      const { code, stderr } = await appliance.command(words.map((word) => (word === "ID" ? id : word)));
      expect([code, stderr]).toEqual([0, expect.not.stringContaining("conflict")]);
      await appliance.command(["op", "cancel", id]);
    }
  });

  test("a checkpoint is an image of the current files; Ctrl-C twice kills only what exec started", async () => {
    const script = "echo before > /root/file; sleep 300";
    const id = await appliance.spawn({ image: "tag:busybox", command: script, shell: true, disposable: true });
    await until(
      "it runs",
      async () => (await appliance.command(["exec", id, "--", "test", "-s", "/root/file"])).code === 0,
    );
    const checkpoint = await appliance.command(["checkpoint", id, "--tag", "half-way"]);
    expect([checkpoint.code, checkpoint.stdout]).toEqual([0, expect.stringMatching(/^[0-9a-f-]{36}\n$/)]);
    expect(checkpoint.stderr).toMatch(/the instance was stopped for \d/);
    expect((await appliance.command(["cat", "tag:half-way", "/root/file"])).stdout).toBe("before\n");

    const stubborn = "trap 'echo not yet' INT; echo ready; while :; do sleep 0.1; done";
    using exec = new CliProcess(appliance, ["exec", id, "--", "sh", "-c", stubborn]);
    await exec.says("ready");
    exec.signal("SIGINT");
    await exec.says("not yet");
    exec.signal("SIGINT");
    expect(await exec.ended()).toBe(137);
    // A reader that detaches does not affect the command.
    using attached = new CliProcess(appliance, ["attach", id]);
    await until("it is attached", async () => {
      const status = await readFile(`/proc/${attached.pid}/status`, "utf8");
      // Bit 0 of its handled signals is SIGHUP.
      return (Number.parseInt(/SigCgt:\s+(\w+)/.exec(status)?.[1] ?? "0", 16) & 1) === 1;
    });
    attached.signal("SIGHUP");
    expect(await attached.ended()).toBe(0);
    expect(await (await appliance.fetch(`/operations/${id}`)).json()).toMatchObject({ status: "EXECUTING" });
    await appliance.fetch(`/operations/${id}`, { method: "DELETE" });
    await appliance.finished(id);
  });

  test("logs -f and attach show a run at the same time, and its exit code", async () => {
    const script = "for i in 1 2 3; do echo line $i; sleep 0.2; done; echo bad >&2; exit 3";
    const id = (
      await appliance.command(["run", "--image", "tag:busybox", "--disposable", "-d", "--", "sh", "-c", script])
    ).stdout.trim();
    using logs = new CliProcess(appliance, ["logs", "-f", id]);
    using attached = new CliProcess(appliance, ["attach", id]);
    expect([await logs.ended(), await attached.ended()]).toEqual([0, 3]);
    for (const { stdout, stderr } of [logs, attached]) {
      expect([stdout, stderr]).toEqual(["line 1\nline 2\nline 3\n", "bad\n"]);
    }
    expect((await appliance.command(["logs", id])).stdout).toBe("line 1\nline 2\nline 3\n");
  });
});
