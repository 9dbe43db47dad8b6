import { describe, expect, test } from "bun:test";
import type { OperationEvent, SavedState } from "../../../../src/client/types.ts";
import { SANDBOX_STATES } from "../../../../src/domain/sandbox.ts";
import { linkTo, parseLink } from "../../../../src/web/sandboxes/link.ts";
import { EMPTY_FORM, requestOf } from "../../../../src/web/sandboxes/model/form.ts";
import { pointsOf } from "../../../../src/web/sandboxes/model/history.ts";
import { leftMs, lifeText } from "../../../../src/web/sandboxes/model/life.ts";
import { addressOfPort, portOf } from "../../../../src/web/sandboxes/model/ports.ts";
import { ACTIONS, isPossible, type SandboxAction } from "../../../../src/web/sandboxes/model/states.ts";
import { storyOf } from "../../../../src/web/sandboxes/model/story.ts";
import { bytesOfText, textFileOf } from "../../../../src/web/sandboxes/model/text-file.ts";

describe("the actions on a sandbox", () => {
  const names = Object.keys(ACTIONS) as SandboxAction[];
  const allowed = (state: (typeof SANDBOX_STATES)[number]) =>
    names.filter((action) => isPossible(action, state, () => true)).sort();

  test("are those that its state accepts", () => {
    expect(Object.fromEntries(SANDBOX_STATES.map((state) => [state, allowed(state)]))).toEqual({
      starting: ["change", "end"],
      running: ["change", "checkpoint", "end", "fork", "pause", "rollback"],
      pausing: ["change", "end"],
      paused: ["change", "end", "fork", "resume", "rollback"],
      resuming: ["change", "end"],
      failed: ["change", "end", "fork", "resume", "rollback"],
      ended: [],
    });
  });

  test("need their scope", () => {
    const may = (scope: string) => scope === "instances:exec";
    expect(names.filter((action) => isPossible(action, "running", may)).sort()).toEqual(["checkpoint"]);
  });
});

describe("the time that is left", () => {
  const now = Date.parse("2026-11-20T10:00:00Z");
  const life = {
    ends_at: "2026-11-20T10:30:00Z",
    state: "running",
    on_timeout: "pause",
    idle_timeout: 600,
    auto_resume: true,
  } as const;

  test("is counted to the deadline, and never below 0", () => {
    expect(leftMs(life, now)).toBe(1_800_000);
    expect(leftMs(life, now + 3_600_000)).toBe(0);
    expect(leftMs({ ...life, ends_at: null }, now)).toBeNull();
    expect(leftMs({ ...life, state: "ended" }, now)).toBeNull();
  });

  test("is said with what follows", () => {
    expect(lifeText(life)).toBe("Then, or after 10 min without use, it pauses.");
    expect(lifeText({ ...life, on_timeout: "end", idle_timeout: null })).toBe("Then it ends.");
    expect(lifeText({ ...life, ends_at: null })).toBe("It pauses after 10 min without use.");
    expect(lifeText({ ...life, ends_at: null, idle_timeout: null })).toBe("It has no deadline.");
    expect(lifeText({ ...life, state: "paused" })).toBe("The next request resumes it.");
    expect(lifeText({ ...life, state: "paused", auto_resume: false })).toMatch(/stays paused/);
    expect(lifeText({ ...life, state: "ended" })).toBe("It has ended.");
  });
});

test("the line of saved states marks the way of the head", () => {
  const state = (seq: number, parent: number | null, isHead = false): SavedState => ({
    ...{ seq, parent, image: `image ${seq}`, reason: "checkpoint", tags: [], ref: null },
    ...{ created_at: "2026-11-20T10:00:00Z", is_head: isHead },
  });
  // 0 - 1 - 2, then back to 1 and on to 3.
  const points = pointsOf([state(3, 1, true), state(2, 1), state(1, 0), state(0, null)]);
  expect(points.map(({ state: { seq }, isOnPath, follows }) => [seq, isOnPath, follows?.seq ?? null])).toEqual([
    [3, true, 1],
    [2, false, null],
    [1, true, null],
    [0, true, null],
  ]);
  // Older states are removed: the parent of the last one is unknown.
  expect(pointsOf([state(9, 8, true), state(8, 7)]).map(({ isOnPath }) => isOnPath)).toEqual([true, true]);
  // A circle, which no appliance sends, does not hang the page.
  expect(pointsOf([state(2, 1, true), state(1, 2)])).toHaveLength(2);
});

test("the story has the changes of state, newest first, and nothing of the machine", () => {
  const event = (id: number, type: string, data: object) =>
    ({ id, type, time: "2026-11-20T10:30:00Z", spid: 0, data }) as unknown as OperationEvent;
  const story = storyOf([
    event(0, "state", { from: null, to: "starting", reason: "request", head: null }),
    event(1, "init", { vcpus: 1 }),
    event(2, "state", { from: "starting", to: "running", reason: "machine", head: null }),
    event(3, "ends_soon", { ends_at: "2026-11-20T10:31:00.000Z" }),
    event(4, "state", { from: "running", to: "pausing", reason: "<b>why</b>", head: null }),
    event(5, "dropped", { first: 9, dropped: 3 }),
    event(6, "state", { to: "toString" }),
    event(7, "adopted", { after_ms: 700, daemon: "0.1.0" }),
  ]);
  expect(story.map(({ id, state, text, detail }) => [id, state, text, detail])).toEqual([
    [7, null, "It has outlived a restart of the appliance", ""],
    [5, null, "3 earlier events were dropped", ""],
    [4, "pausing", "", "<b>why</b>"],
    [3, null, "Its time ends at 10:31:00 UTC", ""],
    [2, "running", "", ""],
    [0, "starting", "as requested", ""],
  ]);
});

describe("a text that is edited", () => {
  const bytes = (text: string) => new TextEncoder().encode(text);

  test.each([
    ["", "\n"],
    ["a\nb\n", "\n"],
    ["a\r\nb\r\n", "\r\n"],
    ["a\rb\r", "\r"],
    ["\ufeffa\r\nb", "\r\n"],
    ["no end", "\n"],
  ])("keeps the bytes of %j", (text, lineEnd) => {
    const file = textFileOf(bytes(text));
    expect(file?.lineEnd).toBe(lineEnd as "\n");
    expect(file?.isMixed).toBe(false);
    expect(file?.text).not.toMatch(/\r|\ufeff/);
    if (file !== null) expect(bytesOfText(file, file.text)).toEqual(bytes(text));
  });

  test("says that line ends are mixed", () => {
    const file = textFileOf(bytes("a\r\nb\r\nc\n"));
    expect(file).toEqual({ text: "a\nb\nc\n", lineEnd: "\r\n", isMixed: true, hasMark: false });
  });

  test("is UTF-8 without NUL", () => {
    expect(textFileOf(Uint8Array.of(0x63, 0xe9))).toBeNull();
    expect(textFileOf(Uint8Array.of(0x63, 0))).toBeNull();
  });
});

describe("the form of a sandbox", () => {
  test("is a request with the fields that have a value", () => {
    expect(requestOf({ ...EMPTY_FORM, image: " tag:busybox " })).toEqual({
      request: { image: "tag:busybox", on_timeout: "pause", auto_resume: true },
    });
    const form = {
      ...{
        image: "tag:busybox",
        name: "dev",
        timeout: "8h",
        idle: "30m",
        onTimeout: "end" as const,
        autoResume: false,
      },
      ...{ vcpus: "2", memory: "1G", disk: "", rules: "*.example.org:443\n10.0.7.5" },
    } as const;
    expect(requestOf(form)).toEqual({
      request: {
        ...{ image: "tag:busybox", name: "dev", timeout: 28_800, idle_timeout: 1800 },
        ...{ on_timeout: "end", auto_resume: false, resources: { vcpus: 2, memory_bytes: 1_073_741_824 } },
        network: { allow: [{ host: "*.example.org", ports: [443] }, { host: "10.0.7.5" }] },
      },
    } as never);
  });

  test("names every field that is wrong", () => {
    const result = requestOf({ ...EMPTY_FORM, timeout: "soon", idle: "x", vcpus: "two", memory: "much", rules: "a b" });
    expect("problems" in result ? Object.keys(result.problems).sort() : []).toEqual([
      ...["idle_timeout", "network", "resources.memory_bytes", "resources.vcpus", "timeout"],
    ]);
  });
});

test("a port is a number, and a link to one leads to the web alone", () => {
  expect(["1", " 8080 ", "65535", "0", "65536", "80a", ""].map(portOf)).toEqual([
    1,
    8080,
    65_535,
    null,
    null,
    null,
    null,
  ]);
  expect(addressOfPort("http://8080-dev.me.localhost:8000/?t=x")).toBe("http://8080-dev.me.localhost:8000/?t=x");
  expect(addressOfPort("javascript:alert(1)")).toBeNull();
  expect(addressOfPort("8080")).toBeNull();
});

test("a link names the part, the path as bytes, and the process", () => {
  const link = parseLink("name:dev", "?view=files&path=%2Fsrv%2Fcaf%E9");
  expect(link).toEqual({ id: "name:dev", view: "files", path: "/srv/caf%E9" as never, process: null });
  expect(linkTo("name:dev", "files", { path: link.path })).toBe("/sandboxes/name%3Adev?view=files&path=/srv/caf%E9");
  expect(parseLink("x", "?view=terminal&process=7")).toMatchObject({ view: "terminal", process: 7 });
  expect(parseLink("x", "?view=nothing&process=-")).toMatchObject({ view: "files", process: null });
});
