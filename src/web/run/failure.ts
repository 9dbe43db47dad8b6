import type { Operation } from "../../client/types.ts";
import { Problem } from "../data/problem.ts";

/** The problem of a failed operation; null: it did not fail. */
export function problemOfOperation({ status, error }: Operation): Problem | null {
  if (status !== "FAILED" || error === undefined) return null;
  return new Problem(error.message, { code: error.error, details: error.details });
}
