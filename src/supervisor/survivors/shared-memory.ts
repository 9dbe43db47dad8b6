import { UseCount } from "../../vm/use-count.ts";
import type { Survivor } from "./survey.ts";

/**
 * Counts the memory that survivors share with each other, until the last of them is gone: no template or fork point of this process
 * has it. Kept memory counts with its sandbox.
 */
export function countSharedMemory(
  survivors: Iterable<Survivor>,
  scheduler: { takeShared(memoryBytes: number): Disposable },
): void {
  const uses = new Map<string, UseCount>();
  for (const survivor of survivors) {
    const { resumed, machine } = survivor.record;
    const { templateId, templateBytes } = machine;
    if (templateId === undefined || resumed === true) continue;
    let shared = uses.get(templateId);
    if (shared === undefined) {
      const held = scheduler.takeShared(templateBytes);
      shared = new UseCount();
      void shared.released.then(() => held[Symbol.dispose]());
      uses.set(templateId, shared);
    }
    survivor.use(shared.use());
  }
  for (const shared of uses.values()) shared.leave();
}
