import type { LogEvent } from "../../src/domain/log-event.ts";
import type { EventFile } from "../../src/storage/events/event-file.ts";
import { EventReader, FIRST_PLACE, type Place } from "../../src/storage/events/reader.ts";

/** All events of a log that does not grow, or those from `place` on. */
export async function* allEvents(
  file: EventFile,
  place: Place = FIRST_PLACE,
): AsyncGenerator<LogEvent, void, undefined> {
  const reader = new EventReader(file, place);
  const endBytes = file.sizeBytes;
  for (let events = await reader.next(endBytes); events.length > 0; events = await reader.next(endBytes)) yield* events;
}
