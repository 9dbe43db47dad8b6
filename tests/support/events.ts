import type { LogEvent } from "../../src/domain/log-event.ts";
import type { EventFile } from "../../src/storage/events/event-file.ts";
import type { EventPosition } from "../../src/storage/events/position.ts";
import { EventReader } from "../../src/storage/events/reader.ts";

/** All events of a log that does not grow, or those after `position`. */
export async function* allEvents(
  file: EventFile,
  position: EventPosition = file.first,
): AsyncGenerator<LogEvent, void, undefined> {
  const reader = new EventReader(file, position);
  const endBytes = file.sizeBytes;
  for (let events = await reader.next(endBytes); events.length > 0; events = await reader.next(endBytes)) yield* events;
}
