import { ApiError } from "../domain/errors.ts";
import { withinTime } from "../system/waiting.ts";

/**
 * Gives `work` a deadline. The work itself goes on: the caller ends it by disposing of what it uses.
 * @throws ApiError `unavailable`, naming `step`
 */
export async function withDeadline<T>(work: Promise<T>, deadlineMs: number, step: string): Promise<T> {
  return await withinTime(work, deadlineMs, () => {
    throw new ApiError("unavailable", `${step} took longer than ${deadlineMs / 1000} s`);
  });
}
