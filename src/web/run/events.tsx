import type { OperationEvent } from "../../client/types.ts";
import { Empty } from "../parts/empty.tsx";
import { GuestText } from "../parts/guest-text.tsx";
import { type Column, Table } from "../parts/lists/table.tsx";
import { countOf } from "../text/format.ts";
import type { EventFeed } from "./event-feed-reader.ts";

/** Largest number of rows of the table, which shows the newest events. */
const SHOWN_COUNT = 200;

/** Events of the operation without output. */
export function EventList({ feed }: { readonly feed: EventFeed }) {
  const { events, droppedEventsCount } = feed;
  if (events.length === 0) return <Empty title="Nothing has happened yet" text="Events appear here as they happen." />;
  const newest = events.slice(-SHOWN_COUNT).reverse();
  const left = droppedEventsCount + events.length - newest.length;
  return (
    <section class="stack gap-3 shrink" aria-label="Events">
      <Table label="Events, newest first" columns={COLUMNS} rows={newest} rowKey={({ id }) => String(id)} />
      {left === 0 ? null : <p class="muted">{countOf(left, "earlier event")} not shown.</p>}
    </section>
  );
}

const COLUMNS: readonly Column<OperationEvent>[] = [
  { id: "id", label: "Number", isFigure: true, cell: ({ id }) => id },
  { id: "time", label: "Time", cell: ({ time }) => <EventTime time={time} /> },
  { id: "type", label: "Event", isHeading: true, cell: ({ type }) => type },
  {
    id: "process",
    label: "Process",
    isFigure: true,
    cell: ({ spid }) => (spid === undefined || spid === 0 ? "–" : spid),
  },
  { id: "what", label: "Details", isWide: true, cell: (event) => <GuestText text={eventText(event)} hasTitle /> },
];

function EventTime({ time }: { readonly time: string }) {
  const date = new Date(time);
  return (
    <time class="number" dateTime={time} title={time}>
      {date.toLocaleTimeString("en-GB")}.{String(date.getMilliseconds()).padStart(3, "0")}
    </time>
  );
}

/** The data of an event as `name value` pairs. */
function eventText({ data }: OperationEvent): string {
  return Object.entries(data)
    .filter(([, value]) => value !== null && value !== false && value !== undefined)
    .map(([name, value]) => `${name} ${typeof value === "object" ? JSON.stringify(value) : value}`)
    .join(", ");
}
