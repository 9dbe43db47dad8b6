import { describe, expect, setDefaultTimeout, test } from "bun:test";
import { ARGUMENTS_BYTES_MAX } from "../../../src/domain/instance.ts";
import { BusyboxCommands } from "../../support/appliance/busybox-commands.ts";
import { type Body, list, resultOf, upload, uploadProgram } from "../../support/runs.ts";

setDefaultTimeout(120_000);

const box = new BusyboxCommands();
const { exec, shell } = box;
/** Processor time that `times` of a shell prints, in `milliseconds`: the shell's, and that of its ended children. */
const timesOf = (out: string): { readonly all: number; readonly children: number } => {
  const seconds = [...out.matchAll(/(\d+)m([\d.]+)s/g)].map(
    ([, minutes, seconds]) => Number(minutes) * 60 + Number(seconds),
  );
  const [ownUser = 0, ownSystem = 0, user = 0, system = 0] = seconds.map((seconds) => Math.round(seconds * 1000));
  expect(seconds).toHaveLength(4);
  return { all: ownUser + ownSystem + user + system, children: user + system };
};
const refusal = async (request: Body) => {
  const response = await box.appliance.post("/instances", { image: box.image, command: "true", ...request });
  return { status: response.status, body: (await response.json()) as Body };
};

describe("POST /instances command, shell, args", () => {
  // spec: instances.command, instances.shell
  test.concurrent("shell false: the command is one executable, found through PATH and not expanded", async () => {
    const result = await exec({ command: "echo", args: ["$HOME", "*", "a  b", "", "ünï; exit 3"] });
    expect(result).toMatchObject({ exit_code: 0, timed_out: false });
    expect(result.out).toBe("$HOME * a  b  ünï; exit 3\n");
    const spaced = await exec({ command: "echo hello" });
    expect(spaced.exit_code).toBe(127);
    expect(spaced.err).toContain("echo hello");
  });

  // spec: instances.shell
  test.concurrent("shell true: /bin/sh -c, and args become $1 and so on", async () => {
    const result = await shell('echo "$#|$1|$2|$0"; echo $((6*7)) | cat', { args: ["a b", "$1"] });
    expect(result.out).toBe("2|a b|$1|/bin/sh\n42\n");
    const alone = await shell('echo "$#"; xargs -0 echo </proc/$$/cmdline; :');
    expect(alone.out).toStartWith("0\n/bin/sh -c echo");
  });

  test.concurrent("the request's PATH decides where a command is found; a path with a slash needs none", async () => {
    const tool = await upload(box.appliance, "#!/bin/sh\necho tool $0\n");
    const files = { "/opt/bin/tool": { uuid: tool, mode: "0755" } };
    expect((await exec({ command: "tool", files, env: { PATH: "/opt/bin:/bin" } })).out).toBe("tool /opt/bin/tool\n");
    expect((await exec({ command: "tool", files })).exit_code).toBe(127);
    const relative = await exec({ command: "./tool", files, cwd: "/opt/bin" });
    expect(relative.out).toBe("tool ./tool\n");
  });

  test.concurrent("not found is 127, not executable is 126, each with a message on stderr", async () => {
    const plain = await upload(box.appliance, "echo a script without an interpreter line\n");
    const lost = await upload(box.appliance, "#!/no/such/interpreter\n");
    const cases: [Body, number, RegExp][] = [
      [{ command: "no-such-command" }, 127, /^no-such-command: command not found\n$/],
      [{ command: "/no/such/file" }, 127, /^\/no\/such\/file: No such file or directory\n$/],
      [{ command: "/etc/passwd/x" }, 127, /Not a directory/],
      [{ command: "/etc/passwd" }, 126, /Permission denied/],
      [{ command: "/etc" }, 126, /Permission denied/],
      [{ command: "/x/plain", files: { "/x/plain": { uuid: plain, mode: "0755" } } }, 126, /format/i],
      [{ command: "/x/lost", files: { "/x/lost": { uuid: lost, mode: "0755" } } }, 127, /No such file/],
      [{ command: "nothing", shell: true }, 127, /not found/],
      [{ command: "/etc/passwd", shell: true }, 126, /denied/],
    ];
    for (const [request, code, message] of cases) {
      const result = await exec(request);
      expect([request["command"], result.exit_code]).toEqual([request["command"], code]);
      expect(result.err).toMatch(message);
      expect(result.out).toBe("");
    }
  });

  // spec: result.exit_code
  test.concurrent("exit codes and signals: n is n, killed by signal n is 128+n, abort is 134", async () => {
    const abort = await uploadProgram(box.appliance, "abort", "#include <stdlib.h>\nint main(void) { abort(); }\n");
    const fault = await uploadProgram(box.appliance, "fault", "int main(void) { *(volatile int *)0 = 1; return 0; }\n");
    const program = (uuid: string) => ({ command: "/p", files: { "/p": { uuid, mode: "0755" } } });
    const cases: [Body, number][] = [
      [{ command: "exit 0", shell: true }, 0],
      [{ command: "exit 255", shell: true }, 255],
      [{ command: "kill -9 $$", shell: true }, 137],
      [{ command: "kill -TERM $$", shell: true }, 143],
      [{ command: "kill -INT $$", shell: true }, 130],
      [{ command: "kill -PIPE $$", shell: true }, 141],
      [{ command: "kill -ABRT $$", shell: true }, 134],
      [program(abort), 134],
      [program(fault), 139],
    ];
    const codes = await Promise.all(cases.map(async ([request]) => (await exec(request)).exit_code));
    expect(codes).toEqual(cases.map(([, code]) => code));
  });

  test.concurrent("the command is not PID 1, leads its session, and has no signal blocked or ignored", async () => {
    const { out } = await exec({ command: "cat", args: ["/proc/self/stat", "/proc/self/status"] });
    const [pid = "", , , , , session] = out.split(" ");
    expect(Number(pid)).toBeGreaterThan(1);
    expect(session).toBe(pid);
    for (const set of ["SigBlk", "SigIgn"]) expect(out).toContain(`${set}:\t0000000000000000\n`);
  });
});

describe("POST /instances env, cwd, hostname", () => {
  // spec: instances.env
  test.concurrent("environment: only PATH, HOME, HOSTNAME and what the request gives, which wins", async () => {
    const bare = (await exec({ command: "env" })).out.trim().split("\n").sort();
    expect(bare.map((line) => line.split("=")[0])).toEqual(["HOME", "HOSTNAME", "PATH"]);
    expect(bare).toContain("HOME=/root");
    const given = await exec({
      command: "/usr/bin/env",
      env: { A: "1", HOME: "/tmp", PATH: "/bin", EMPTY: "", "odd.name": "ä\nb=c" },
      hostname: "named",
    });
    expect(given.out.trim().split("\n").sort()).toEqual(
      ["A=1", "EMPTY=", "HOME=/tmp", "HOSTNAME=named", "PATH=/bin", "odd.name=ä", "b=c"].sort(),
    );
  });

  test.concurrent("arguments: 131,071 bytes fit in a command, an argument and an env string", async () => {
    const long = "x".repeat(131_071);
    expect((await exec({ command: "echo", args: [long] })).stdout.content).toBe(`${long}\n`);
    const script = `echo \${#A}; #${"x".repeat(131_071 - 13)}`;
    expect(Buffer.byteLength(script)).toBe(131_071);
    expect((await shell(script, { env: { A: "y".repeat(131_069) } })).out).toBe("131069\n");
    const env = Object.fromEntries(Array.from({ length: 500 }, (_, index) => [`V${index}`, "e".repeat(2000)]));
    expect((await shell("env | wc -c", { env })).out).toMatch(/^100\d{4}\n$/);
  });

  test.concurrent("arguments: one byte more, NUL, or a total that execve refuses is 400", async () => {
    const long = "x".repeat(131_072);
    const requests: Body[] = [
      { command: long },
      { args: [long] },
      { env: { A: "y".repeat(131_070) } },
      { args: Array.from({ length: 16 }, () => "z".repeat(131_000)) },
      { args: ["a\0b"] },
      { command: "a\0b" },
      { env: { "A=B": "c" } },
      { env: { "": "c" } },
      { env: { A: "b\0" } },
    ];
    for (const request of requests) {
      expect(await refusal(request)).toMatchObject({ status: 400, body: { error: "validation_error" } });
    }
  });

  test.concurrent("arguments: the largest accepted total runs, and one byte more is 400", async () => {
    // Each string also takes a NUL and a pointer.
    const cost = (texts: readonly string[]) => texts.reduce((sum, text) => sum + Buffer.byteLength(text) + 9, 0);
    const command = 'echo "$#"';
    const args = Array.from({ length: 15 }, () => "z".repeat(130_000));
    const left = ARGUMENTS_BYTES_MAX - cost(["/bin/sh", "-c", command, "/bin/sh", ...args]) - 9;
    expect(left).toBeGreaterThan(0);
    const fitting = [...args, "y".repeat(left)];
    expect(await shell(command, { args: fitting })).toMatchObject({ exit_code: 0, out: "16\n", err: "" });
    const over = { command, shell: true, args: [...args, "y".repeat(left + 1)] };
    expect(await refusal(over)).toMatchObject({ status: 400, body: { error: "validation_error" } });
    const many = await shell('echo "$#"', { args: Array.from({ length: 100_000 }, (_, index) => String(index)) });
    expect(many).toMatchObject({ exit_code: 0, out: "100000\n" });
  });

  // spec: instances.cwd
  test.concurrent("cwd: default /root; a missing one is created with mode 0755 and owner root; a relative one is 422", async () => {
    expect((await exec({ command: "pwd" })).out).toBe("/root\n");
    expect((await exec({ command: "pwd", cwd: "/tmp//./" })).out).toBe("/tmp\n");
    const changed = resultOf(await box.appliance.run(box.image, "pwd; ls -ldn . ..", { cwd: "/srv/a/b c" }));
    expect(changed.out).toMatch(/^\/srv\/a\/b c\ndrwxr-xr-x +2 0 +0 .*\ndrwxr-xr-x +3 0 +0 /);
    expect(await list(box.appliance, changed.image ?? "", "/srv/a")).toMatchObject([
      { name: "b c", mode: "0755", uid: 0 },
    ]);
    for (const cwd of ["root", "", "../x", "/a/../b", "/a\0b", `/${"d/".repeat(2048)}x`, `/${"n".repeat(256)}`]) {
      expect(await refusal({ cwd })).toMatchObject({ status: 422, body: { error: "invalid_path" } });
    }
  });

  test.concurrent("cwd that is a file or a dangling link ends FAILED invalid_path, without an exit code", async () => {
    for (const cwd of ["/etc/passwd", "/etc/passwd/x", "/proc/none/x", "/sys/none", "/dev/null"]) {
      const operation = await box.appliance.finished(
        await box.appliance.spawn({ image: box.image, command: "true", cwd }),
      );
      expect(operation).toMatchObject({ status: "FAILED", error: { error: "invalid_path" } });
    }
  });

  test.concurrent("cwd through a symlink of the image stays inside the image", async () => {
    const parent = resultOf(
      await box.appliance.run(box.image, "ln -s /srv/real /way; mkdir -p /srv/real; ln -s ../../.. /up"),
    );
    const through = await exec({ image: parent.image, command: "pwd", shell: true, cwd: "/way/new" });
    expect(through.out).toBe("/srv/real/new\n");
    const up = await exec({ image: parent.image, command: "pwd", shell: true, cwd: "/up/etc" });
    expect(up.out).toBe("/etc\n");
  });

  // spec: instances.hostname
  test.concurrent("hostname: set by sethostname and HOSTNAME without writing a file; by default unique to the run", async () => {
    const named = resultOf(
      await box.appliance.run(box.image, 'hostname; uname -n; echo "$HOSTNAME"', { hostname: "box-1.example" }),
    );
    expect(named.out).toBe("box-1.example\nbox-1.example\nbox-1.example\n");
    expect(named.image).toBe(box.image);
    const [a, b] = await Promise.all([shell('hostname; echo "$HOSTNAME"'), shell("hostname")]);
    const [own, variable] = a.out.trim().split("\n");
    expect(own).toBe(variable ?? "");
    expect(own).not.toBe(b.out.trim());
    expect((await shell("hostname", { hostname: "h".repeat(64) })).out).toBe(`${"h".repeat(64)}\n`);
  });
});

describe("POST /instances resources, as the sandbox sees them", () => {
  test.concurrent("resources: vcpus, memory and disk are as requested, rounded up", async () => {
    const { out } = await shell("nproc; grep MemTotal /proc/meminfo; df -k / | tail -1", {
      resources: { vcpus: 2, memory_bytes: 300 * 1_048_576, disk_bytes: 100 * 1_048_576 },
    });
    const [cpus, memory = "", disk = ""] = out.trim().split("\n");
    expect(cpus).toBe("2");
    const memoryKib = Number(/(\d+) kB/.exec(memory)?.[1]);
    expect(memoryKib).toBeGreaterThan(300 * 1024);
    const diskKib = Number(disk.trim().split(/\s+/)[1]);
    expect(diskKib).toBeGreaterThan(95 * 1024);
    expect(diskKib).toBeLessThan(300 * 1024);
  });

  test.concurrent("network: only the loopback works", async () => {
    const listens = 'until grep -q ":0063 0*:0000 0A" /proc/net/tcp /proc/net/tcp6; do :; done';
    const { out } = await shell(
      `ls /sys/class/net; ip route | wc -l; (echo pong | nc -l -p 99 &) ; ${listens}; nc 127.0.0.1 99 </dev/null`,
    );
    expect(out).toBe("lo\n0\npong\n");
  });

  // spec: result.cpu_time_ms, result.memory_bytes, service.figures
  test.concurrent("cpu_time_ms and memory_bytes are those of the command and its children", async () => {
    const busy = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done";
    const children = Array.from({ length: 6 }, () => `(${busy}) &`).join(" ");
    const spawned = await box.appliance.spawn({ image: box.image, command: "sleep 1", shell: true, disposable: true });
    const operation = await box.appliance.finished(spawned);
    const idle = resultOf(operation);
    const [one, six] = await Promise.all([
      shell(`${busy}; times`),
      shell(`${children} wait; dd if=/dev/zero of=/dev/null bs=48M count=1 2>/dev/null; times`),
    ]);
    // An instance has one processor here: while it sleeps, none is used.
    expect(idle.cpu_time_ms).toBeLessThanOrEqual(Number(operation["duration_ms"]) - 1000);
    for (const { cpu_time_ms, out } of [one, six]) expect(cpu_time_ms).toBeGreaterThanOrEqual(timesOf(out).all);
    expect(timesOf(six.out).children).toBeGreaterThan(0);
    expect(six.memory_bytes).toBeGreaterThan(48 * 1_048_576);
    expect(idle.memory_bytes).toBeGreaterThan(0);
    expect(idle.memory_bytes).toBeLessThan(32 * 1_048_576);
    for (const { cpu_time_ms, memory_bytes } of [idle, one, six]) {
      expect(Number.isInteger(cpu_time_ms) && Number.isInteger(memory_bytes)).toBe(true);
    }
  });
});
