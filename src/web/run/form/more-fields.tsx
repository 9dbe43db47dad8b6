import { Button, IconButton } from "../../parts/button.tsx";
import { Checkbox, Field, Select } from "../../parts/field.tsx";
import { ResourceFields, TextField } from "../../parts/form/text-field.tsx";
import type { FieldsProps } from "./command-fields.tsx";
import type { RunForm } from "./run-form.ts";

interface MoreFieldsProps extends FieldsProps {
  readonly mayUseNetwork: boolean;
}

/** Optional fields, in groups that open. */
export function MoreFields(props: MoreFieldsProps) {
  const { form, problems } = props;
  const isWrong = (...names: readonly string[]) => names.some((name) => problems[name] !== undefined);
  return (
    <div class="run-groups">
      <Group
        title="Variables and directory"
        isOpen={form.variables.length > 0 || form.cwd !== "" || isWrong("env", "cwd")}
      >
        <Variables {...props} />
        <TextField {...props} name="cwd" label="Working directory" placeholder="/root" field="cwd" />
      </Group>
      <Group title="Limits" isOpen={LIMIT_NAMES.some((name) => form[name] !== "") || isWrong(...LIMIT_FIELDS)}>
        <div class="run-form-grid gap-3">
          <ResourceFields {...props} />
          <TextField {...props} name="timeout" label="Time" placeholder="5m" field="timeout" />
          <TextField
            {...props}
            name="output"
            label="Output of each stream"
            placeholder="1M"
            field="truncate_output_at"
          />
        </div>
      </Group>
      <Group title="Network" isOpen={form.network !== "none" || isWrong("network")}>
        <Network {...props} />
      </Group>
      <Group
        title="Input and terminal"
        isOpen={form.stdin !== "" || form.isStdinOpen || form.hasTerminal || isWrong("stdin")}
      >
        <TextField {...props} name="stdin" label="Standard input" rows={4} field="stdin" />
        <Checkbox
          label="Keep standard input open"
          hint="More can be written while it runs."
          isChecked={form.isStdinOpen}
          onChecked={(isStdinOpen) => props.set({ isStdinOpen })}
        />
        <Checkbox
          label="Give the command a terminal"
          hint="For interactive programs, such as an editor. Both streams become one."
          isChecked={form.hasTerminal}
          onChecked={(hasTerminal) => props.set({ hasTerminal, ...(hasTerminal ? { isStdinOpen: true } : {}) })}
        />
      </Group>
      <Group
        title="User, host name and tag"
        isOpen={
          form.uid !== "" ||
          form.gid !== "" ||
          form.hostname !== "" ||
          form.tag !== "" ||
          isWrong("uid", "gid", "hostname", "tag")
        }
      >
        <div class="run-form-grid gap-3">
          <TextField {...props} name="uid" label="User id" placeholder="0" field="uid" />
          <TextField {...props} name="gid" label="Group id" placeholder="0" field="gid" />
          <TextField {...props} name="hostname" label="Host name" field="hostname" />
          <TextField {...props} name="tag" label="Tag for the result" field="tag" />
        </div>
      </Group>
    </div>
  );
}

const LIMIT_NAMES = ["vcpus", "memory", "disk", "timeout", "output"] as const;
const LIMIT_FIELDS = [
  ...["resources.vcpus", "resources.memory_bytes", "resources.disk_bytes", "timeout", "truncate_output_at"],
];

interface GroupProps {
  readonly title: string;
  /** whether it is open at first, and when one of its fields is wrong */
  readonly isOpen: boolean;
  readonly children: preact.ComponentChildren;
}

function Group({ title, isOpen, children }: GroupProps) {
  return (
    <details class="run-group" open={isOpen}>
      <summary>{title}</summary>
      <div class="run-group-body stack gap-3">{children}</div>
    </details>
  );
}

function Variables({ form, set, problems }: FieldsProps) {
  const { variables } = form;
  const change = (at: number, values: Partial<RunForm["variables"][number]>) =>
    set({ variables: variables.map((one, index) => (index === at ? { ...one, ...values } : one)) });
  return (
    <fieldset class="run-variables stack gap-3 shrink">
      <legend class="visually-hidden">Variables</legend>
      {variables.map(({ name, value }, index) => (
        <div key={index} class="run-variable items-end gap-2-3">
          <Field label="Name" isMono value={name} onValue={(text) => change(index, { name: text })} />
          <Field label="Value" isMono value={value} onValue={(text) => change(index, { value: text })} />
          <IconButton
            icon="trash"
            label={`Remove ${name === "" ? "the variable" : name}`}
            onClick={() => set({ variables: variables.filter((_, at) => at !== index) })}
          />
        </div>
      ))}
      {problems["env"] === undefined ? null : (
        <p class="field-problem danger small" role="alert">
          {problems["env"]}
        </p>
      )}
      <p>
        <Button icon="plus" isSmall onClick={() => set({ variables: [...variables, { name: "", value: "" }] })}>
          Add a variable
        </Button>
      </p>
    </fieldset>
  );
}

function Network({ form, set, problems, mayUseNetwork }: MoreFieldsProps) {
  const { network } = form;
  return (
    <>
      <Select
        label="May connect to"
        value={network}
        disabled={!mayUseNetwork}
        choices={[
          { value: "none", label: "Nothing" },
          { value: "allow", label: "Hosts that rules allow" },
          { value: "record", label: "What the operator allows, recorded as rules" },
        ]}
        onValue={(value) => set({ network: value })}
        {...(mayUseNetwork ? {} : { hint: "The token of this session lacks the scope instances:network." })}
        {...(network === "allow" ? {} : { problem: problems["network"] })}
      />
      {network === "allow" ? (
        <Field
          label="Rules"
          isMono
          rows={3}
          placeholder={"*.example.org\n10.0.7.5:5432"}
          hint="One per line: HOST or HOST:PORT+PORT. Without a port: 80 and 443."
          value={form.rules}
          onValue={(rules) => set({ rules })}
          problem={problems["network"]}
        />
      ) : null}
      {network === "none" ? null : (
        <Checkbox
          label="Allow anything on port 443"
          hint="Otherwise only TLS that names the host of the connection passes port 443."
          isChecked={form.isTlsAny}
          onChecked={(isTlsAny) => set({ isTlsAny })}
        />
      )}
    </>
  );
}
