import { afterEach, beforeEach, expect, test } from "bun:test";
import type { OperationEvent } from "../../../../src/client/types.ts";
import {
  countOfTypes,
  type EventFeed,
  EventFeedReader,
  emptyEventFeed,
  KEPT_EVENTS_MAX,
} from "../../../../src/web/run/event-feed-reader.ts";

let frames: FrameRequestCallback[] = [];
const before = globalThis.requestAnimationFrame;
beforeEach(() => {
  frames = [];
  globalThis.requestAnimationFrame = (draw) => frames.push(draw);
});
afterEach(() => {
  globalThis.requestAnimationFrame = before;
});

const event = (id: number, type: string, data: object = {}) =>
  ({ id, type, time: "2026-11-20T10:30:00Z", spid: 1, data }) as unknown as OperationEvent;

test("a feed counts events that it has dropped", () => {
  let feed: EventFeed = emptyEventFeed();
  const reader = new EventFeedReader((next) => {
    feed = next;
  });
  const show = (next: OperationEvent): void => {
    reader.take(next, 1);
    for (const draw of frames.splice(0)) draw(0);
  };
  show(event(0, "init", { vcpus: 2 }));
  show(event(1, "spawn"));
  expect(feed.events).toHaveLength(2);
  for (let id = 2; id < 2 * KEPT_EVENTS_MAX; id += 1) show(event(id, id % 2 === 0 ? "spawn" : "exit"));
  expect(feed.events).toHaveLength(KEPT_EVENTS_MAX);
  expect(feed.events[0]?.id).toBe(KEPT_EVENTS_MAX);
  expect(feed.droppedEventsCount).toBe(KEPT_EVENTS_MAX);
  expect(feed.machine?.data).toEqual({ vcpus: 2 } as never);
  const turns = countOfTypes(feed, ["spawn", "exit", "completion"]);
  expect(turns).toBe(2 * KEPT_EVENTS_MAX - 1);
  // A reader that reloads the operation at each of these events does so at the last one, too.
  show(event(2 * KEPT_EVENTS_MAX, "completion"));
  expect(countOfTypes(feed, ["spawn", "exit", "completion"])).toBe(turns + 1);
  expect(feed.isOver).toBe(true);
});

test("a feed is over after the end of a sandbox, not after its other states", () => {
  const reader = new EventFeedReader(() => undefined);
  const turns = ["running", "paused", "ended"].map((to, id) => {
    reader.take(event(id, "state", { to }), 0);
    return reader.isOver;
  });
  expect(turns).toEqual([false, false, true]);
});

test("a feed is shown once per frame, and not after it was left", () => {
  const feeds: EventFeed[] = [];
  const reader = new EventFeedReader((feed) => feeds.push(feed));
  for (let id = 0; id < 10; id += 1) reader.take(event(id, "stdout", { content: "x\n", encoding: "ascii" }), 1);
  expect([frames.length, feeds.length]).toEqual([1, 0]);
  frames.shift()?.(0);
  expect(feeds.map(({ read }) => read)).toEqual([{ events: 10, characters: 20 }]);
  expect(feeds[0]?.output.lines()).toHaveLength(10);
  expect(feeds[0]?.counts).toEqual({ stdout: 10 });
  reader.take(event(10, "exit"), 1);
  reader.leave();
  frames.shift()?.(0);
  expect(feeds).toHaveLength(1);
});
