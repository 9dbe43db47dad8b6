import type { Operation } from "../../client/types.ts";
import { Problem } from "../data/problem.ts";

/** Why an operation failed, as the page shows it; null: it did not. */
export function problemOfOperation({ status, error }: Operation): Problem | null {
  if (status !== "FAILED" || error === undefined) return null;
  return new Problem(error.message, { code: error.error, details: error.details });
}
