{{/* Names follow helm's custom: the release's name, with the chart's unless it has it already. */}}
{{- define "vpc-ipamd.name" -}}
{{ .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* 40 characters at most: what is appended (-settings, -sweeper, -inventory and a job's suffix) must fit too. */}}
{{- define "vpc-ipamd.fullname" -}}
{{- $name := include "vpc-ipamd.name" . -}}
{{- $joined := contains $name .Release.Name | ternary .Release.Name (printf "%s-%s" .Release.Name $name) -}}
{{ .Values.fullnameOverride | default $joined | trunc 40 | trimSuffix "-" }}
{{- end }}

{{/* A release of another name has its instance in its selector, which can never be changed. The first one's is that of manifests/base. */}}
{{- define "vpc-ipamd.selector" -}}
app.kubernetes.io/name: {{ include "vpc-ipamd.name" . }}
{{- if ne (include "vpc-ipamd.fullname" .) (include "vpc-ipamd.name" .) }}
app.kubernetes.io/instance: {{ include "vpc-ipamd.fullname" . }}
{{- end }}
{{- end }}

{{- define "vpc-ipamd.labels" -}}
{{ include "vpc-ipamd.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{/* Of every object, but not of pods: a chart's new version alone must not roll them. */}}
{{- define "vpc-ipamd.commonLabels" -}}
app.kubernetes.io/instance: {{ include "vpc-ipamd.fullname" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: {{ .Chart.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "vpc-ipamd.objectLabels" -}}
app.kubernetes.io/name: {{ include "vpc-ipamd.name" . }}
app.kubernetes.io/component: node-agent
{{ include "vpc-ipamd.commonLabels" . }}
{{- end }}

{{- define "vpc-ipamd.sweeperLabels" -}}
app.kubernetes.io/name: {{ include "vpc-ipamd.fullname" . }}-sweeper
app.kubernetes.io/component: sweeper
{{ include "vpc-ipamd.commonLabels" . }}
{{- end }}

{{- define "vpc-ipamd.inventoryLabels" -}}
app.kubernetes.io/name: {{ include "vpc-ipamd.fullname" . }}-inventory
app.kubernetes.io/component: inventory
{{ include "vpc-ipamd.commonLabels" . }}
{{- end }}

{{- define "vpc-ipamd.monitoringLabels" -}}
app.kubernetes.io/name: {{ include "vpc-ipamd.name" . }}
app.kubernetes.io/component: monitoring
{{ include "vpc-ipamd.commonLabels" . }}
{{- end }}

{{/* A number that YAML gave as a float is written without an exponent: 33554432, not 3.3554432e+07. */}}
{{- define "vpc-ipamd.text" -}}
{{- if kindIs "float64" . }}{{ if eq . (floor .) }}{{ int64 . }}{{ else }}{{ . }}{{ end }}{{ else }}{{ . }}{{ end -}}
{{- end }}

{{- define "vpc-ipamd.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (.Values.serviceAccount.create | ternary (include "vpc-ipamd.fullname" .) "default") }}
{{- end }}

{{- define "vpc-ipamd.image" -}}
{{ .Values.image.repository }}{{ if .Values.image.digest }}@{{ .Values.image.digest }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "vpc-ipamd.pull" -}}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{/* "yes" if the daemon asks kubelet for its pods. */}}
{{- define "vpc-ipamd.asksKubelet" -}}
{{- with .Values.podSecurityGroups }}{{ if and .mode (eq .source "kubelet") }}yes{{ end }}{{ end -}}
{{- end }}
