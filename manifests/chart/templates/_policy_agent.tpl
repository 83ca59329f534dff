{{/* aws-network-policy-agent beside the daemon (docs/policy.md). Its flags, ports and mounts are those of the manifests of amazon-vpc-cni-k8s. */}}

{{- define "vpc-ipamd.policyAgent" -}}
{{- with .Values.networkPolicyAgent }}
# It meets the daemon in /run/aws-node: there it listens, and there it asks for the mode. The pod's only container with a token.
- name: network-policy-agent
  image: {{ .image.repository }}{{ if .image.digest }}@{{ .image.digest }}{{ else }}:{{ .image.tag }}{{ end }}
  {{- with .image.pullPolicy }}
  imagePullPolicy: {{ . }}
  {{- end }}
  args:
    - --enable-network-policy=true
    - --enable-ipv6={{ include "vpc-ipamd.text" (get $.Values.settings "ENABLE_IPv6" | default "false") }}
    - --enable-cloudwatch-logs=false
    - --enable-policy-event-logs=false
    - --log-file=/var/log/aws-routed-eni/network-policy-agent.log
    - --metrics-bind-addr=:{{ .metricsPort }}
    - --health-probe-bind-addr=:{{ .healthPort }}
    {{- with .extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  env:
    - name: MY_NODE_NAME
      valueFrom:
        fieldRef: {fieldPath: spec.nodeName}
  securityContext:
    {{- toYaml .securityContext | nindent 4 }}
  resources:
    {{- toYaml .resources | nindent 4 }}
  volumeMounts:
    - {name: aws-node, mountPath: /var/run/aws-node}
    - {name: cni-bin, mountPath: /host/opt/cni/bin}  # it puts a command for operators there
    - {name: bpf, mountPath: /sys/fs/bpf}
    - {name: policy-agent-log, mountPath: /var/log/aws-routed-eni}
    - {name: policy-agent-token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end }}
{{- end }}

{{- define "vpc-ipamd.policyAgentVolumes" -}}
- name: bpf
  hostPath: {path: /sys/fs/bpf, type: Directory}
- name: policy-agent-log
  hostPath: {path: /var/log/aws-routed-eni, type: DirectoryOrCreate}
- name: policy-agent-token
  projected:
    sources:
      - serviceAccountToken: {path: token, expirationSeconds: 3607}
      - configMap:
          name: kube-root-ca.crt
          items: [{key: ca.crt, path: ca.crt}]
      - downwardAPI:
          items:
            - path: namespace
              fieldRef: {fieldPath: metadata.namespace}
{{- end }}
