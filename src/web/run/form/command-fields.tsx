import { Field, Select } from "../../parts/field.tsx";
import type { FormFieldsProps } from "../../parts/form/text-field.tsx";
import { GuestText } from "../../parts/guest-text.tsx";
import { ImageField } from "./image-field.tsx";
import type { RunForm } from "./run-form.ts";
import { shellLine, shellWords } from "./shell-words.ts";

export type FieldsProps = FormFieldsProps<RunForm>;

/** The image and the command. */
export function CommandFields({ form, set, problems }: FieldsProps) {
  const { isShell, line } = form;
  const words = isShell ? null : shellWords(line);
  const switchTo = (shell: boolean) => {
    const parsed = shellWords(line);
    // Without special characters, a shell reads the line as the same words.
    set({ isShell: shell, line: shell && !("problem" in parsed) ? shellLine(parsed.words) : line });
  };
  return (
    <>
      <ImageField value={form.image} onValue={(image) => set({ image })} problem={problems["image"]} />
      <div class="run-command stack gap-2">
        <Field
          label="Command"
          isMono
          rows={3}
          placeholder={isShell ? "make && ./test | tee log.txt" : "python3 job.py 'first argument'"}
          value={line}
          onValue={(value) => set({ line: value })}
          problem={problems["command"]}
        />
        <Select
          label="Run as"
          value={isShell ? "shell" : "words"}
          choices={[
            { value: "shell", label: "Shell command" },
            { value: "words", label: "Program with arguments" },
          ]}
          onValue={(value) => switchTo(value === "shell")}
        />
      </div>
      {words === null || line.trim() === "" ? null : "problem" in words ? (
        <p class="field-hint muted small">{words.problem}</p>
      ) : (
        <ol class="run-words flex wrap gap-1" aria-label="Program and arguments">
          {words.words.map((word, index) => (
            <li key={index} class="inset small">
              {word === "" ? <span class="muted">empty</span> : <GuestText text={word} isMono />}
            </li>
          ))}
        </ol>
      )}
    </>
  );
}
