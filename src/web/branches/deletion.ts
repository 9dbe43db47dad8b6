import { request } from "../data/api.ts";

/** What the deletion of an image gives back. */
export interface Deletion {
  readonly size_bytes: number;
  readonly layers: number;
}

/** @throws Problem */
export async function deletionOf(id: string, signal: AbortSignal): Promise<Deletion> {
  const response = await request(`/v1/images/${id}/deletion`, { signal });
  return (await response.json()) as Deletion;
}
