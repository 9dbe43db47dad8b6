import type { Client } from "./client.ts";
import { pathOfPlace } from "./place.ts";
import type { SandboxReference } from "./sandboxes.ts";
import type { ForkRequest, InstanceFork, InstanceForkRequest, MemoryFork } from "./types.ts";

/**
 * Copies a running sandbox with its processes and its memory, all copies or none. It stands still for a moment, and continues.
 * Every copy has all secrets of the memory.
 * @param wait longest time until the copies run, in `seconds`; 0: none
 * @throws ResponseError `conflict` when it is not running, or busy; `unavailable` without room; UnreachableError
 */
export async function forkSandboxMemory(
  client: Client,
  sandbox: SandboxReference,
  request: Omit<ForkRequest, "memory">,
  wait = 30,
): Promise<MemoryFork> {
  const options = { json: { ...request, memory: true }, query: { wait } };
  return await client.exchange<MemoryFork>("POST", `${pathOfPlace({ sandbox })}/fork`, options);
}

/** The same for the instance of an operation. Each copy is an operation of its own. @throws as `forkSandboxMemory` does */
export async function forkInstance(client: Client, id: string, request: InstanceForkRequest): Promise<InstanceFork> {
  return await client.exchange<InstanceFork>("POST", `/instances/${id}/fork`, { json: request });
}
