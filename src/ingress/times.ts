/** Bounds of waits, in `milliseconds`. */
export interface Times {
  /** for the head of a request, from its first byte on */
  readonly headMs: number;
  /** for the next request on a connection */
  readonly idleMs: number;
  /** for the next bytes of a body that the guest reads */
  readonly bodyMs: number;
  /** for the head of a guest's answer */
  readonly answerMs: number;
  /** for a client to read some of what is sent to it */
  readonly stallMs: number;
}

export const TIMES: Times = {
  headMs: 30_000,
  // Clients of sandboxes keep connections for 300 s, and do not repeat a POST on one that was closed meanwhile.
  idleMs: 360_000,
  bodyMs: 120_000,
  answerMs: 600_000,
  stallMs: 120_000,
};
