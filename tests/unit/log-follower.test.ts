/** The checks of the reader that the tests with faults trust. */
import { expect, test } from "bun:test";
import { LogFollower } from "../faults/talking/follower.ts";
import type { Appliance } from "../support/appliance/appliance.ts";
import { TALKER, TalkerOutput } from "../support/talker/talker.ts";

interface Event {
  readonly id: number;
  readonly spid?: number;
  readonly type: string;
  readonly data: object;
}

/** Logs by sandbox; each connection gets the next part of its log, and the last one the rest. */
function applianceOf(logs: Readonly<Record<string, readonly Event[]>>, whole = logs): Appliance {
  const connections: Record<string, number> = {};
  const fetch = async (path: string, init: RequestInit = {}): Promise<Response> => {
    const id = path.split("/")[2] ?? "";
    if (!path.endsWith("follow=true")) return Response.json(whole[id]);
    const after = Number(new Headers(init.headers).get("last-event-id") ?? -1);
    const number = (connections[id] ?? 0) + 1;
    connections[id] = number;
    const events = (logs[id] ?? []).filter((event, at) => at > after && event.id >= 0);
    const part = number < 3 ? events.slice(0, 2) : events;
    const text = part.map((event) => `id: ${event.id}\nevent: ${event.type}\ndata: ${JSON.stringify(event)}\n\n`);
    // The last event of a part is cut off in the middle.
    return new Response(number < 3 ? `${text.join("")}id: 99\nevent: std` : text.join(""));
  };
  return { fetch } as unknown as Appliance;
}

const NAME = "unit";
/** Lines as the program writes them, by the reader's own account of it. */
const lines = (count: number, from = new TalkerOutput(NAME)): string[] => {
  const all: string[] = [];
  for (let number = 0; number < count; number++) all.push(from.next("stdout"));
  return all;
};

const [first = "", second = "", third = ""] = lines(3);
const state = (id: number, from: string | null, to: string): Event => ({ id, type: "state", data: { from, to } });
const out = (id: number, content: string): Event => ({
  id,
  spid: 2,
  type: "stdout",
  data: { content, encoding: "ascii" },
});
const spawn = (id: number): Event => ({
  id,
  spid: 2,
  type: "spawn",
  data: { command: TALKER, args: [NAME, "1", "1", "1"] },
});
const exit = (id: number): Event => ({ id, spid: 2, type: "exit", data: { exit_code: 137, signal: 9 } });

const RIGHT: readonly Event[] = [
  state(0, null, "starting"),
  state(1, "starting", "running"),
  spawn(2),
  out(3, first + second.slice(0, 5)),
  out(4, second.slice(5)),
  out(5, third),
  exit(6),
  state(7, "running", "ended"),
];

async function problemsOf(events: readonly Event[], whole = events): Promise<string[]> {
  const problems: string[] = [];
  const follower = new LogFollower(applianceOf({ a: events }, { a: whole }), "a", () => null, problems);
  follower.start();
  await follower.ended;
  if (problems.length === 0) await follower.finish();
  return problems;
}

test("a log is right through all ends of the connection", async () => {
  expect(await problemsOf(RIGHT)).toEqual([]);
});

const renumbered = (events: readonly Event[]): Event[] => events.map((event, id) => ({ ...event, id }));
test.each([
  ["an event is missing", [...RIGHT.slice(0, 4), ...RIGHT.slice(5)], /event 5 follows 3/],
  ["output is missing", renumbered([...RIGHT.slice(0, 5), ...RIGHT.slice(6)].with(4, out(4, third))), /in place of/],
  ["output comes twice", renumbered([...RIGHT.slice(0, 6), out(6, third), ...RIGHT.slice(6)]), /in place of/],
  ["output comes after the end", renumbered([...RIGHT.slice(0, 7), out(7, ""), ...RIGHT.slice(7)]), /has ended/],
  ["a process ends twice", renumbered([...RIGHT.slice(0, 7), exit(7), ...RIGHT.slice(7)]), /has ended/],
  ["a process has no start", renumbered([...RIGHT.slice(0, 2), ...RIGHT.slice(3)]), /no start/],
  [
    "a number of a process is used again",
    renumbered([...RIGHT.slice(0, 7), spawn(7), ...RIGHT.slice(7)]),
    /starts again/,
  ],
] as const)("%s", async (_, events, problem) => {
  expect((await problemsOf(events)).join("\n")).toMatch(problem);
});

test("the whole log must be what was read", async () => {
  const changed = RIGHT.map((event) => (event.id === 3 ? out(3, first) : event));
  expect((await problemsOf(RIGHT, changed)).join()).toContain("event 3 has changed");
  expect((await problemsOf(RIGHT, RIGHT.slice(0, 6))).join()).toContain("ends before event 6");
  const dropped: Event = { id: 1, type: "dropped", data: { first: 2, dropped: 2 } };
  expect(await problemsOf(RIGHT, [dropped, ...RIGHT.slice(2)])).toEqual([]);
  expect((await problemsOf(RIGHT, [dropped, ...RIGHT.slice(3)])).join()).toContain("event 3 in place of 2");
});

test.each([
  ["continues in the middle of a line", second.slice(5), []],
  ["repeats what its parent wrote", second, [/in place of/]],
  ["lost what its parent had not written yet", third, [/in place of/]],
] as const)("a fork %s", async (_, output, expected) => {
  const child = renumbered([
    { id: 0, type: "fork", data: { parent: "a", at_event: 3 } },
    spawn(1),
    out(2, output),
    state(3, "running", "ended"),
  ]);
  const problems: string[] = [];
  const appliance = applianceOf({ a: RIGHT, b: child });
  const parent = new LogFollower(appliance, "a", () => null, problems);
  const follower = new LogFollower(appliance, "b", () => parent, problems);
  follower.start();
  parent.start();
  await Promise.all([parent.ended, follower.ended]);
  expect(problems.length).toBe(expected.length);
  for (const [at, pattern] of expected.entries()) expect(problems[at]).toMatch(pattern);
});
