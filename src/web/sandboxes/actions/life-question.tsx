import { useState } from "preact/hooks";
import { changeSandbox } from "../../../client/sandboxes.ts";
import { DURATION_FORM, durationText, secondsOfDuration } from "../../../domain/text/quantities.ts";
import { api } from "../../data/api.ts";
import { Checkbox, Field, Select } from "../../parts/field.tsx";
import { ACTIONS } from "../model/states.ts";
import { ConfirmChange, type QuestionProps } from "./confirm-change.tsx";

export const TIMEOUT_CHOICES = [
  { value: "pause", label: "Pause it" },
  { value: "end", label: "End it" },
] as const;

/** The life of a sandbox: its time from now on, and what happens at its end. */
export function LifeQuestion({ sandbox, onClose, onChange }: QuestionProps) {
  const [time, setTime] = useState("1h");
  const [idle, setIdle] = useState(sandbox.idle_timeout === null ? "" : durationText(sandbox.idle_timeout));
  const [onTimeout, setOnTimeout] = useState(sandbox.on_timeout);
  const [resumes, setResumes] = useState(sandbox.auto_resume);
  const seconds = time.trim() === "" ? undefined : secondsOfDuration(time);
  const idleSeconds = idle.trim() === "" ? undefined : secondsOfDuration(idle);
  const problemIn = (value: number | null | undefined) => (value === null ? `a time is ${DURATION_FORM}` : undefined);
  return (
    <ConfirmChange
      title="More time"
      action="Change"
      isReady={seconds !== null && idleSeconds !== null}
      onClose={onClose}
      onChange={onChange}
      onConfirm={async () => {
        await changeSandbox(api, sandbox.uuid, {
          ...(seconds === undefined || seconds === null ? {} : { timeout: seconds }),
          idle_timeout: idleSeconds ?? null,
          on_timeout: onTimeout,
          auto_resume: resumes,
        });
      }}
    >
      <p>{ACTIONS.change.effect}</p>
      <Field
        label="Time from now"
        hint="Such as 90s, 30m or 2h. Empty: the deadline stays."
        value={time}
        onValue={setTime}
        problem={problemIn(seconds)}
      />
      <Select label="Then" value={onTimeout} choices={TIMEOUT_CHOICES} onValue={setOnTimeout} />
      <Field
        label="Pause when idle for"
        hint="Such as 30m. Empty: it is not paused."
        value={idle}
        onValue={setIdle}
        problem={problemIn(idleSeconds)}
      />
      <Checkbox label="Resume it for a request" isChecked={resumes} onChecked={setResumes} />
    </ConfirmChange>
  );
}
