import { EventFile } from "./event-file.ts";
import { LogSummary } from "./log-summary.ts";
import { type EventPosition, FIRST_POSITION, PositionIndex } from "./position.ts";
import { EventReader } from "./reader.ts";
import { FILE_MAGIC } from "./record.ts";

/** A plain log that its writer has left without ending it. It ends with its last whole event. */
export interface ReopenedLog {
  readonly file: EventFile;
  readonly end: EventPosition;
  readonly index: PositionIndex;
  readonly summary: LogSummary;
}

/**
 * Opens a plain log to continue it: reads all of it, and cuts what follows the last whole event. Null when there is no such
 * log. The caller disposes of its file.
 * @throws Error of the file system
 */
export async function reopenLog(path: string): Promise<ReopenedLog | null> {
  using stack = new DisposableStack();
  const file = await EventFile.reopen(path);
  if (file === null) return null;
  stack.use(file);
  const { sizeBytes } = file;
  const magic = Buffer.alloc(FILE_MAGIC.byteLength);
  if ((await file.read(magic, 0)) < magic.byteLength || !magic.equals(FILE_MAGIC)) return null;
  const reader = new EventReader(file, FIRST_POSITION, true);
  const index = new PositionIndex();
  const summary = new LogSummary();
  for (let events = await reader.next(sizeBytes); events.length > 0; events = await reader.next(sizeBytes)) {
    for (const event of events) summary.take(event);
    index.add(reader.position);
  }
  await file.truncate(reader.position.offset);
  stack.move();
  return { file, end: reader.position, index, summary };
}

/** True when a plain log has the start of a process; it is read up to there. @throws Error of the file system */
export async function hasStart(path: string, spid: number): Promise<boolean> {
  using file = await EventFile.reopen(path);
  if (file === null) return false;
  const reader = new EventReader(file, FIRST_POSITION, true);
  for (;;) {
    const events = await reader.next(file.sizeBytes);
    if (events.length === 0) return false;
    if (events.some((event) => event.type === "spawn" && event.spid === spid)) return true;
  }
}
