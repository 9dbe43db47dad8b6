import type { ComponentChildren } from "preact";
import { useRef, useState } from "preact/hooks";

export interface SplitterProps {
  /** names of the two sides, for screen readers */
  readonly label: string;
  /** key under which the browser stores the share */
  readonly name: string;
  readonly first: ComponentChildren;
  readonly second: ComponentChildren;
  /** initial share of the first side, in `percent` */
  readonly initial?: number;
}

const PERCENT_MIN = 15;
const PERCENT_MAX = 85;
const KEY_PERCENT = 4;

/** Two sides with a border that can be moved, by the pointer and by arrow keys; in a narrow place one below the other. */
export function Splitter({ label, name, first, second, initial = 40 }: SplitterProps) {
  const key = `coppice.splitter.${name}`;
  const [percent, setPercent] = useState(() => within(Number(localStorage.getItem(key) ?? initial), initial));
  const place = useRef<HTMLDivElement>(null);
  const move = (next: number) => {
    const value = within(next, initial);
    setPercent(value);
    localStorage.setItem(key, String(value));
  };
  const drag = (event: PointerEvent) => {
    const handle = event.currentTarget as HTMLElement;
    if (place.current === null || !handle.hasPointerCapture(event.pointerId)) return;
    const { left, width } = place.current.getBoundingClientRect();
    move(((event.clientX - left) / width) * 100);
  };
  const onKey = (event: KeyboardEvent) => {
    const steps: Record<string, number> = {
      ArrowLeft: percent - KEY_PERCENT,
      ArrowRight: percent + KEY_PERCENT,
      Home: PERCENT_MIN,
      End: PERCENT_MAX,
    };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    move(step);
  };
  return (
    <div ref={place} class="splitter flex fill shrink">
      <div class="splitter-side stack shrink" style={{ flexBasis: `${percent}%` }}>
        {first}
      </div>
      <div
        class="splitter-border rigid relative"
        role="separator"
        aria-orientation="vertical"
        aria-label={label}
        aria-valuenow={Math.round(percent)}
        aria-valuemin={PERCENT_MIN}
        aria-valuemax={PERCENT_MAX}
        tabIndex={0}
        onPointerDown={(event) => event.currentTarget.setPointerCapture(event.pointerId)}
        onPointerMove={drag}
        onKeyDown={onKey}
      />
      <div class="splitter-side stack shrink splitter-rest">{second}</div>
    </div>
  );
}

function within(percent: number, fallback: number): number {
  return Number.isFinite(percent) && percent > 0 ? Math.min(PERCENT_MAX, Math.max(PERCENT_MIN, percent)) : fallback;
}
