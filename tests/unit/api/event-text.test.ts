import { expect, test } from "bun:test";
import { EventText } from "../../../src/api/v1/event-text.ts";
import type { LogEvent } from "../../../src/domain/log-event.ts";

const TIME_NS = 1_700_000_000_123_456_789n;
const output = (payload: Uint8Array, more: Partial<LogEvent> = {}): LogEvent => ({
  ...{ id: 7, timeNs: TIME_NS, spid: 1, type: "stdout" },
  ...{ payload, ...more },
});
const ascii = Buffer.from(Array.from({ length: 128 }, (_, byte) => byte));

test("ASCII is escaped as JSON.stringify does, and other bytes are base64", () => {
  const text = new EventText();
  const data = `{"content":${JSON.stringify(ascii.toString("latin1"))},"encoding":"ascii"}`;
  const head = `{"id":7,"time":"2023-11-14T22:13:20.123456789Z","spid":1,"type":"stdout","data":`;
  expect(text.items([output(ascii)])).toBe(`${head}${data}}`);
  expect(Buffer.from(text.frames([output(ascii)])).toString()).toBe(`id: 7\nevent: stdout\ndata: ${head}${data}}\n\n`);
  const binary = Buffer.concat([ascii, Buffer.from([0x80])]);
  expect(JSON.parse(text.items([output(binary)])).data).toEqual({
    content: binary.toString("base64"),
    encoding: "base64",
  });
});

test("the buffer grows with many events, and keeps those encoded before", () => {
  const text = new EventText();
  const events = [
    ...Array.from({ length: 500 }, (_, id) => output(Buffer.from(`line ${id}\n`), { id })),
    // Six times as long in JSON.
    ...Array.from({ length: 20 }, (_, n) => output(Buffer.alloc(16_384, n), { id: 500 + n, type: "stderr" })),
    output(Buffer.from(JSON.stringify({ step: "prüfen" })), { id: 520, type: "progress", spid: null }),
  ];
  const first = text.frames(events);
  const copy = Buffer.from(first);
  const parsed = JSON.parse(`[${text.items(events)}]`);
  expect(parsed.map(({ id }: { id: number }) => id)).toEqual(events.map(({ id }) => id));
  expect(parsed[520]).toEqual({
    ...{ id: 520, time: "2023-11-14T22:13:20.123456789Z" },
    ...{ type: "progress", data: { step: "prüfen" } },
  });
  for (const [at, { payload }] of events.slice(0, 520).entries()) {
    expect(parsed[at].data.content).toBe(Buffer.from(payload).toString("latin1"));
  }
  text.frames([output(Buffer.alloc(20_000, "x"))]);
  expect(copy.equals(first)).toBe(true);
});
