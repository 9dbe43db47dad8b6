/** The seed in COPPICE_TEST_SEED; by default a constant, so that a new failure is due to a change. */
export function seedOfTests(): number {
  return Number(process.env["COPPICE_TEST_SEED"] ?? 2002);
}

/** Random numbers that are the same for the same seed, so that a failure can be reproduced. */
export function seededRandom(seed: number): { below(limit: number): number; bytes(count: number): Uint8Array } {
  let state = seed >>> 0;
  // mulberry32
  const next = (): number => {
    state = (state + 0x6d2b79f5) >>> 0;
    let mixed = state;
    mixed = Math.imul(mixed ^ (mixed >>> 15), mixed | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return (mixed ^ (mixed >>> 14)) >>> 0;
  };
  return {
    below: (limit) => next() % limit,
    bytes: (count) => Uint8Array.from({ length: count }, () => next() & 0xff),
  };
}
