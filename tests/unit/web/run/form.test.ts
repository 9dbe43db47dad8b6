import { describe, expect, test } from "bun:test";
import type { InstanceOperationRequest, SpawnRequest } from "../../../../src/client/types.ts";
import { bytesOfSize, durationText, secondsOfDuration, sizeText } from "../../../../src/domain/text/quantities.ts";
import { fieldOf } from "../../../../src/web/parts/form/values.ts";
import { coppiceRun, curlRun } from "../../../../src/web/run/form/commands.ts";
import { rulesOf, ruleText } from "../../../../src/web/run/form/network-rules.ts";
import { EMPTY_FORM, formOf, type RunForm, requestOf } from "../../../../src/web/run/form/run-form.ts";
import { quoted, shellLine, shellWords } from "../../../../src/web/run/form/shell-words.ts";

/** Words that a shell would cut, expand or swallow. */
const HOSTILE = [
  "",
  "a b",
  "it's",
  '"$(reboot)"',
  "`id`",
  "$HOME",
  "*",
  "a\\",
  "a\nb",
  "\ttab",
  "\u001b[31mred\u0007",
  "\u001b1",
  "-rf",
  "ümläut €",
  "!history",
  "'''",
  "\u0085'\\",
  "a#b",
  "~root",
];

describe("words", () => {
  test("are parsed as they were quoted", () => {
    expect(shellWords(shellLine(HOSTILE))).toEqual({ words: HOSTILE });
    for (const word of HOSTILE) expect(shellWords(quoted(word))).toEqual({ words: [word] });
  });

  test("without special characters are not quoted", () => {
    expect(shellLine(["ls", "-l", "/tmp/a_b.c", "x=1,2:3@4%5+6"])).toBe("ls -l /tmp/a_b.c x=1,2:3@4%5+6");
  });

  test("are quoted so that only a quote can end them", () => {
    expect(quoted("it's; reboot")).toBe("'it'\\''s; reboot'");
    expect(quoted("a\u0007'b")).toBe("$'a\\007\\'b'");
  });

  const lines: [string, string[]][] = [
    ["", []],
    ["  echo  a\tb\n", ["echo", "a", "b"]],
    ["echo 'a b' \"c d\" e\\ f", ["echo", "a b", "c d", "e f"]],
    ["a'b'\"c\"d", ["abcd"]],
    ['"a\\"b\\\\c\\d"', ['a"b\\c\\d']],
    ["'' \"\"", ["", ""]],
    ["$HOME * | ;", ["$HOME", "*", "|", ";"]],
    ["$'a\\tb\\x41\\101\\u20ac'", ["a\tbAA€"]],
    ["a\\\nb", ["ab"]],
  ];
  for (const [line, words] of lines) {
    test(`of ${JSON.stringify(line)}`, () => expect(shellWords(line)).toEqual({ words }));
  }

  test("of an unfinished line are a problem with its reason", () => {
    expect(shellWords("echo 'a")).toEqual({ problem: "a quote ' is not closed" });
    expect(shellWords('echo "a')).toEqual({ problem: 'a quote " is not closed' });
    expect(shellWords("echo $'a")).toEqual({ problem: "a quote $' is not closed" });
    expect(shellWords("echo \\")).toEqual({ problem: "nothing follows the backslash at the end" });
  });
});

describe("quantities", () => {
  test("are parsed with their units", () => {
    expect(["512", "512M", "1.5 GiB", "2g", "1KB", "-1", "M", "1e3", ""].map(bytesOfSize)).toEqual([
      ...[512, 536_870_912, 1_610_612_736, 2_147_483_648, 1024, null, null, null, null],
    ]);
    expect(["90", "90s", "15m", "2h", "1d", "1w", "1500ms", "soon"].map(secondsOfDuration)).toEqual([
      ...[90, 90, 900, 7200, 86_400, 604_800, 2, null],
    ]);
  });

  test("are written so that they are read as the same", () => {
    for (const bytes of [1, 512, 1000, 1024, 268_435_456, 1_610_612_736])
      expect(bytesOfSize(sizeText(bytes))).toBe(bytes);
    for (const seconds of [1, 90, 300, 3600, 90_000]) expect(secondsOfDuration(durationText(seconds))).toBe(seconds);
    expect([sizeText(536_870_912), durationText(300), durationText(90)]).toEqual(["512M", "5m", "90s"]);
  });
});

describe("network rules", () => {
  test("are parsed line by line", () => {
    const text =
      "*.example.org\n\n# of the database\n10.0.7.5:5432\n[2001:db8::1]:443+8443\n2001:db8::2\nx.org:*\ny.org:80, 443";
    expect(rulesOf(text)).toEqual({
      rules: [
        { host: "*.example.org" },
        { host: "10.0.7.5", ports: [5432] },
        { host: "2001:db8::1", ports: [443, 8443] },
        { host: "2001:db8::2" },
        { host: "x.org", ports: "*" },
        { host: "y.org", ports: [80, 443] },
      ],
    });
  });

  test("that are invalid are reported by their line", () => {
    expect(rulesOf("a.org\na.org:0")).toEqual({ problem: "line 2: a port is a number from 1 to 65535" });
    expect(rulesOf("a.org:80+")).toEqual({ problem: "line 1: a port is a number from 1 to 65535" });
    expect(rulesOf("a b")).toEqual({ problem: "line 1 is not a rule: HOST, or HOST:PORT+PORT" });
  });

  test("are written so that they are read as the same", () => {
    const rules = [{ host: "a.org" }, { host: "::1", ports: [1, 2] }, { host: "b.org", ports: "*" as const }];
    expect(rulesOf(rules.map(ruleText).join("\n"))).toEqual({ rules });
  });
});

const FORM: RunForm = { ...EMPTY_FORM, image: "tag:busybox", line: "echo $A" };
const requested = (form: Partial<RunForm>): SpawnRequest => {
  const result = requestOf({ ...FORM, ...form });
  if ("problems" in result) throw new Error(JSON.stringify(result.problems));
  return result.request;
};
const problems = (form: Partial<RunForm>) => {
  const result = requestOf({ ...FORM, ...form });
  return "problems" in result ? result.problems : {};
};

describe("the form", () => {
  test("requests only what was filled in", () => {
    expect(requested({})).toEqual({ image: "tag:busybox", command: "echo $A", shell: true });
    expect(requested({ isShell: false, line: "ls 'a b'" })).toEqual({
      image: "tag:busybox",
      command: "ls",
      args: ["a b"],
    });
  });

  test("requests all that was filled in", () => {
    const file = { key: 1, name: "in.txt", path: "/in", mode: "0755", uuid: "u" };
    expect(
      requested({
        ...{
          cwd: " /work ",
          uid: "7",
          gid: "8",
          hostname: "box",
          variables: [{ name: "A", value: "1" }],
          files: [file],
        },
        ...{ stdin: "ü", isStdinOpen: true, hasTerminal: true, vcpus: "2", memory: "1G", disk: "2G", timeout: "5m" },
        ...{ output: "1M", network: "allow", rules: "a.org:443", isTlsAny: true, isDisposable: true, tag: " after " },
      }),
    ).toEqual({
      ...{ image: "tag:busybox", command: "echo $A", shell: true, cwd: "/work", uid: 7, gid: 8, hostname: "box" },
      ...{
        env: { TERM: "xterm-256color", A: "1" },
        files: { "/in": { uuid: "u", mode: "0755" } },
        stdin: "base64:w7w=",
      },
      ...{
        stdin_open: true,
        pty: { rows: 24, cols: 80 },
        timeout: 300,
        truncate_output_at: 1_048_576,
        disposable: true,
        tag: "after",
      },
      resources: { vcpus: 2, memory_bytes: 1_073_741_824, disk_bytes: 2_147_483_648 },
      network: { allow: [{ host: "a.org", ports: [443] }], tls: "any" },
    });
  });

  test("reports invalid values at their field", () => {
    const twice = [
      { name: "A", value: "1" },
      { name: "A", value: "2" },
    ];
    expect(problems({ memory: "much", vcpus: "two", timeout: "soon", variables: twice })).toEqual({
      "resources.memory_bytes":
        "resources.memory_bytes must be a size such as 512M, 512MiB or 2G, or a number of bytes",
      "resources.vcpus": "resources.vcpus must be a number",
      timeout: "timeout must be a duration such as 90s, 30m, 2h or 7d, or a number of seconds",
      env: "env must name each variable once",
    });
    expect(problems({ isShell: false, line: "echo '" })).toEqual({ command: "a quote ' is not closed" });
    expect(Object.keys(problems({ network: "allow", rules: "" }))).toEqual(["network"]);
  });

  test("maps the fields that the appliance names to its own", () => {
    expect(["args.3", "network.allow.0.host", "resources.vcpus", "env", undefined].map(fieldOf)).toEqual([
      ...["command", "network", "resources.vcpus", "env", ""],
    ]);
  });

  test("of an earlier run makes the same request", () => {
    const submitted: InstanceOperationRequest = {
      ...{
        kind: "instance",
        image: "i",
        command: "cat",
        args: ["a b", "$x"],
        shell: false,
        cwd: "/work",
        uid: 7,
        gid: 0,
      },
      ...{ env_names: ["KEY"], stdin_bytes: 3, stdin_open: true, timeout: 300, disposable: true },
      ...{ truncate_output_at: 1_048_576, files: { "/in": { uuid: "u", mode: "0755", uid: 0, gid: 0 } } },
      resources: { vcpus: 2, memory_bytes: 268_435_456, disk_bytes: 1_073_741_824 },
      network: { allow: [{ host: "a.org", ports: [80, 443] }], tls: "sni" },
    };
    const result = requestOf(formOf(submitted));
    expect(result).toEqual({
      request: {
        ...{
          image: "i",
          command: "cat",
          args: ["a b", "$x"],
          cwd: "/work",
          uid: 7,
          env: { KEY: "" },
          stdin_open: true,
        },
        ...{ timeout: 300, disposable: true, truncate_output_at: 1_048_576, resources: submitted.resources },
        files: { "/in": { uuid: "u", mode: "0755" } },
        network: { allow: [{ host: "a.org", ports: [80, 443] }] },
      },
    } as never);
    const shell = formOf({ ...submitted, command: "echo $1 | wc", args: [], shell: true });
    expect([shell.isShell, shell.line]).toEqual([true, "echo $1 | wc"]);
    const withArguments = requestOf(formOf({ ...submitted, command: "echo $1", args: ["x"], shell: true }));
    expect(withArguments).toMatchObject({ request: { command: "/bin/sh", args: ["-c", "echo $1", "/bin/sh", "x"] } });
  });
});

describe("the same run in a terminal", () => {
  const runOf = (request: Partial<SpawnRequest>) => ({
    request: { image: "tag:busybox", command: "true", ...request } as SpawnRequest,
    names: { "/root/in.txt": "in.txt" },
  });

  test("by coppice run", () => {
    expect(coppiceRun(runOf({ command: "echo $A", shell: true })).text).toBe(
      "coppice run --image tag:busybox --shell -- 'echo $A'",
    );
    const { text, unsaid } = coppiceRun(
      runOf({
        ...{ args: ["it's"], env: { A: "b c" }, files: { "/root/in.txt": { uuid: "u", mode: "0644" } }, uid: 7 },
        ...{
          network: { allow: [{ host: "a.org", ports: [80, 443] }, { host: "b.org" }], tls: "any" },
          disposable: true,
          tag: "after",
        },
        resources: { vcpus: 2, memory_bytes: 536_870_912, disk_bytes: 1_500_000_000 },
        truncate_output_at: 0,
      }),
    );
    expect(text).toBe(
      [
        "coppice run",
        "--image tag:busybox",
        "--uid 7",
        "--cpus 2",
        "--memory 512M",
        "--disk 1500000000",
        "--output-limit 0",
        "--env 'A=b c'",
        "--file in.txt:/root/in.txt",
        "--network allow=a.org:80+443,b.org",
        "--network-tls any",
        "--disposable",
        "--tag after",
        "-- true 'it'\\''s'",
      ].join(" \\\n  "),
    );
    expect(unsaid).toEqual([]);
    const more = coppiceRun(runOf({ files: { "/root/in.txt": { uuid: "u", mode: "0755" }, "/x": { uuid: "v" } } }));
    expect(more.unsaid).toEqual(["modes: files keep theirs", "files that were uploaded for another run"]);
  });

  test("with its standard input, and its terminal", () => {
    expect(coppiceRun(runOf({ stdin: "a b" })).text).toBe("printf %s 'a b' | coppice run --image tag:busybox -- true");
    expect(coppiceRun(runOf({ stdin: "base64:AA==" })).text).toStartWith("printf %s AA== | base64 -d | coppice run");
    const pty = { rows: 24, cols: 80 };
    expect(coppiceRun(runOf({ pty, stdin_open: true, env: { TERM: "xterm" } })).text).toBe(
      "coppice run --image tag:busybox -it -- true",
    );
  });

  test("by curl, for any request", () => {
    const request = runOf({ args: HOSTILE }).request;
    const line = curlRun({ request }, "http://127.0.0.1:8642");
    const result = shellWords(line);
    if ("problem" in result) throw new Error(result.problem);
    expect(result.words.slice(0, 6)).toEqual([
      ...["curl", "-sS", "--fail-with-body", "-H", "Authorization: Bearer $COPPICE_TOKEN"],
      "http://127.0.0.1:8642/v1/instances",
    ]);
    expect(result.words[6]).toBe("--json");
    expect(JSON.parse(result.words[7] ?? "")).toEqual(request);
  });
});
