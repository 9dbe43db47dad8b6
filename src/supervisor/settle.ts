import type { Database } from "../db/database.ts";
import { ownTurn } from "../system/turns.ts";

/** Gives back memory that only the start needed, and prepares what the first requests would wait for. */
export async function settle(db: Database): Promise<void> {
  giveBackUnused();
  // An error shows again when the statement is used.
  await db.prepareAll(ownTurn).catch(() => undefined);
}

/**
 * Returns the memory of the program's source and of functions that do not run now. They are made again from the bytecode
 * in the executable when they are called. A collection alone keeps them: it leaves 11 MiB more.
 */
function giveBackUnused(): void {
  // It is deprecated, but has no successor: `Bun.gc` does not free the functions.
  Bun.shrink();
}
