import type { Choice } from "./field.tsx";

export interface SegmentsProps<Value extends string> {
  /** what is chosen, for screen readers */
  readonly label: string;
  readonly value: Value;
  readonly choices: readonly Choice<Value>[];
  readonly onValue: (value: Value) => void;
}

/** One of two or three ways to show something, all of which are seen. */
export function Segments<Value extends string>({ label, value, choices, onValue }: SegmentsProps<Value>) {
  return (
    <div class="segments rigid" role="group" aria-label={label}>
      {choices.map((choice) => (
        <button
          key={choice.value}
          type="button"
          class="segment medium quiet"
          aria-pressed={choice.value === value}
          onClick={() => onValue(choice.value)}
        >
          {choice.label}
        </button>
      ))}
    </div>
  );
}
