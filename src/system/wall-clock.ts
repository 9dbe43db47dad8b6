const NS_PER_MS = 1_000_000n;
/** The millisecond clock is up to 1 ms behind, and the clocks drift; a larger difference means that the clock was set. */
const APART_NS_MAX = 5n * NS_PER_MS;

/** A clock in ns since the epoch: the monotonic clock, with the offset of the system's clock. */
export function wallClock(): () => bigint {
  let offset = 0n;
  return () => {
    const monotonic = process.hrtime.bigint();
    const apart = BigInt(Date.now()) * NS_PER_MS - (monotonic + offset);
    if (apart > APART_NS_MAX || apart < -APART_NS_MAX) offset += apart;
    return monotonic + offset;
  };
}
