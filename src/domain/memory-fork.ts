import { ApiError } from "./errors.ts";

/** Largest number of copies that one fork with memory makes. */
export const MEMORY_FORK_COUNT_MAX = 16;

/** The warning in the answer to a fork with memory. */
export const MEMORY_FORK_WARNING =
  "every fork has all secrets of the memory: keys, tokens, variables, input, and the state of random numbers of programs";

/** @throws ApiError `validation_error` for too many copies */
export function checkMemoryForks(count: number): void {
  if (count <= MEMORY_FORK_COUNT_MAX) return;
  const details = { field: "count", minimum: 1, maximum: MEMORY_FORK_COUNT_MAX };
  throw new ApiError(
    "validation_error",
    `count must be an integer from 1 to ${MEMORY_FORK_COUNT_MAX} with memory`,
    details,
  );
}
